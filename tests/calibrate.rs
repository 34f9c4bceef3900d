//! `gnnflow calibrate`: its output is a table for the pipeline file.

use crate::common::{TestDir, planted};

#[test]
fn measured_rates_are_a_table_of_the_pipeline_file() {
    let place = TestDir::new();
    let measured = place.succeed(&["calibrate", "--processes", "2", "--threads", "1", "--quiet"]);
    planted(&place, "p.toml", "[model]\n[train]\nschedule.kind = 'auto'\n");
    let file = std::fs::read_to_string(place.path("p.toml")).unwrap();
    place.write("p.toml", format!("{file}\n{measured}"));
    let rates = |sets: &[&str]| {
        let text = place.succeed(&[&["run", "p.toml", "--dry-run", "--json"], sets].concat());
        let plan: serde_json::Value = serde_json::from_str(&text).unwrap();
        let candidates = plan["auto_schedule"]["candidates"].as_array().unwrap().iter();
        let possible = candidates.filter(|candidate| candidate["refused"].is_null());
        possible.map(|candidate| candidate["compute"].as_f64().unwrap()).collect::<Vec<f64>>()
    };
    // The plan uses them: a machine that multiplies much slower needs longer for each schedule.
    // Not partition-parallel: the plan stores no features of halo nodes.
    assert_eq!(rates(&[]).len(), 3);
    let slower = rates(&["--set", "train.schedule.rates.multiplications=1e6"]);
    for (slow, fast) in slower.into_iter().zip(rates(&[])) {
        assert!(slow > 2.0 * fast && fast > 0.0, "{slow} {fast}");
    }
}

#[test]
fn calibration_fails_with_the_folder_that_cannot_be_written() {
    let place = TestDir::new();
    place.fail(&["calibrate", "--threads", "1", "--folder", "no/such"], 4, &["no/such"]);
    place.fail(&["calibrate", "--threads", "0"], 2, &["--threads"]);
}
