//! The pictures of `report.html` and `partition.html`.

use crate::common::{TestDir, planted, summary};

const SETTINGS: &str = "[model]\nkind = 'sage'\nhidden = 16\n[train]\nepochs = 3\n";

/// Runs `SETTINGS`, and returns the report.
fn report(place: &TestDir) -> String {
    planted(place, "p.toml", SETTINGS);
    place.succeed(&["run", "p.toml", "--quiet", "--run-dir", "run"]);
    std::fs::read_to_string(place.path("run/report.html")).unwrap()
}

/// Prepares the dataset of `SETTINGS`, and returns the page of its partition.
fn partition_page(place: &TestDir) -> String {
    planted(place, "p.toml", SETTINGS);
    place.succeed(&["prepare", "p.toml", "--quiet", "--out", "prepared"]);
    std::fs::read_to_string(place.path("prepared/partition.html")).unwrap()
}

/// Returns the pictures of a page.
fn pictures(page: &str) -> Vec<&str> {
    page.split("<svg ").skip(1).map(|rest| rest.split_once("</svg>").unwrap().0).collect()
}

/// Returns the labels of a picture.
fn labels(picture: &str) -> Vec<&str> {
    let texts = picture.split("<text ").skip(1).map(|rest| rest.split_once("</text>").unwrap().0);
    texts.map(|text| text.split_once('>').unwrap().1).collect()
}

/// Returns the numbers below the x axis of a chart.
fn x_numbers(picture: &str) -> Vec<&str> {
    let texts = picture.split("<text class=\"tick\"").skip(1).map(|rest| rest.split_once("</text>").unwrap().0);
    texts.filter(|text| text.contains("\"middle\"")).map(|text| text.split_once('>').unwrap().1).collect()
}

/// Returns the class of the line `name` of the legend, if it is there. The class gives the line its color.
fn class<'a>(picture: &'a str, name: &str) -> Option<&'a str> {
    let (before, _) = picture.split_once(&format!(">{name}</text>"))?;
    before.rsplit_once("<g class=\"")?.1.split('"').next()
}

/// Returns the colors of `class` in the light and in the dark scheme.
fn colors<'a>(page: &'a str, class: &str) -> Vec<&'a str> {
    assert_eq!(page.matches(&format!("\n.{class}{{color:var(--{class})}}")).count(), 1, "{class}");
    page.split(&format!("--{class}:")).skip(1).map(|rest| rest.split([';', '}']).next().unwrap()).collect()
}

#[test]
fn splits_have_the_same_color_in_all_charts() {
    let place = TestDir::new();
    let page = report(&place);
    let pictures = pictures(&page);
    let (loss, metric) = (pictures[0], pictures[1]);
    assert!(labels(loss).contains(&"Loss") && labels(metric).contains(&"Accuracy"));
    assert!(class(loss, "training steps").is_some() && class(metric, "training steps").is_none());
    for split in ["val", "test"] {
        assert_eq!(class(loss, split), Some(split));
    }
    for split in ["train", "val", "test"] {
        assert_eq!(class(loss, split), class(metric, split));
    }
    let mut all: Vec<&str> = ["steps", "train", "val", "test"].iter().flat_map(|class| colors(&page, class)).collect();
    assert_eq!(all.len(), 8, "{all:?}");
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 8, "{all:?}");
}

#[test]
fn epochs_are_whole_numbers_and_the_best_is_named() {
    let place = TestDir::new();
    let page = report(&place);
    let best = summary(&place, "run")["best_epoch"].as_u64().unwrap();
    for picture in &pictures(&page)[..2] {
        let labels = labels(picture);
        assert_eq!(x_numbers(picture), ["1", "2", "3"], "{picture}");
        assert!(labels.contains(&"epoch"), "{labels:?}");
        assert!(labels.contains(&format!("best epoch: {best}").as_str()), "{labels:?}");
    }
}

#[test]
fn heat_map_names_its_axes_and_its_scale() {
    let place = TestDir::new();
    let page = partition_page(&place);
    let labels = labels(pictures(&page)[0]);
    assert!(["from partition", "to partition", "nodes"].iter().all(|label| labels.contains(label)), "{labels:?}");
    // Partitions have a number in both directions.
    for part in ["0", "1", "2", "3"] {
        assert!(labels.iter().filter(|label| **label == part).count() >= 2, "{labels:?}");
    }
}

#[test]
fn pages_load_nothing() {
    let place = TestDir::new();
    for page in [report(&place), partition_page(&place)] {
        assert_eq!(page.matches("http").count(), page.matches("\"http://www.w3.org/2000/svg\"").count());
        assert_eq!(page.matches("url(").count(), page.matches("url(#nodes)").count());
        for word in ["<script", "<link", "<img", "@import", "src="] {
            assert!(!page.contains(word), "{word}");
        }
        assert!(page.contains("prefers-color-scheme:dark"));
    }
}
