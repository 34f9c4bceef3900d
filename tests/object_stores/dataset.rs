//! Datasets in object stores and on web servers: `prepare --upload` and `graph.dataset = "URL"`.

use super::proxy::{Faults, Proxy};
use super::upload::start;
use super::{command, run};
use crate::common::{assert_same_results, summary};

#[test]
fn datasets_are_uploaded_and_read_also_with_connection_faults() {
    let Some((place, server)) = start() else { return };
    let ended = run(command(&place, &["prepare", "p.toml", "--upload", "s3://lake/prepared/p/"], server.address()));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("use it with graph.dataset = \"s3://lake/prepared/p/\"\n"), "{}", ended.stderr);
    let names = ["manifest.json", "partition.json", "part-00000/topology.arrow", "part-00003/features.arrow"];
    for name in names {
        let local = std::fs::read(place.path("dataset").join(name)).unwrap();
        assert!(server.get(&format!("/lake/prepared/p/{name}")).unwrap() == local, "{name}");
    }
    // A public object is read without a signature.
    for entry in ["", "part-00000/", "part-00001/", "part-00002/", "part-00003/"] {
        for file in std::fs::read_dir(place.path("dataset").join(entry)).unwrap() {
            let path = file.unwrap().path();
            if path.is_file() {
                let name = path.file_name().unwrap().to_str().unwrap();
                let public = [("x-amz-acl", "public-read")];
                server.put(&format!("/lake/public/{entry}{name}"), &std::fs::read(&path).unwrap(), &public);
            }
        }
    }
    let text = std::fs::read_to_string(place.path("p.toml")).unwrap();
    let (_, sections) = text.split_once("[model]").unwrap();
    place.write("remote.toml", format!("[graph]\ndataset = 's3://lake/prepared/p'\nretry = '3s'\n[model]{sections}"));
    let proxy = Proxy::start(server.address());
    for (number, faults) in [
        Faults::default(),
        Faults { refuse: 2, ..Faults::default() },
        Faults { busy: 3, ..Faults::default() },
        Faults { cut: Some((2, 20)), busy: 1, ..Faults::default() },
    ]
    .into_iter()
    .enumerate()
    {
        proxy.faults(faults.clone());
        let (name, cache) = (format!("remote-{number}"), format!("graph.dataset_cache=cache-{number}"));
        let args = ["run", "remote.toml", "--run-dir", &name, "--processes", "2", "--set", &cache];
        let ended = run(command(&place, &args, proxy.address()));
        assert_eq!(ended.code, 0, "{faults:?}: {}", ended.stderr);
        assert!(proxy.faults_are_over(), "{faults:?}");
        assert_same_results(&place, "runs/p", &name);
    }
    // By default the copies are beside the pipeline file, and inference uses them.
    let address = server.address();
    let web = format!("graph.dataset=http://{address}/lake/public/");
    let ended = run(command(&place, &["run", "remote.toml", "--run-dir", "web", "--set", &web], address));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_same_results(&place, "runs/p", "web");
    let caches: Vec<_> = std::fs::read_dir(place.path(".gnnflow")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(caches.iter().any(|name| name.to_string_lossy().starts_with("public-")), "{caches:?}");
    let ended = run(command(&place, &["infer", "web", "--out", "scores"], address));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(summary(&place, "scores")["workers"][0]["copied_bytes"], 0);

    let missing = ["run", "remote.toml", "--run-dir", "none", "--set", "graph.dataset=s3://lake/none"];
    let ended = run(command(&place, &missing, address));
    assert_eq!(ended.code, 3, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("s3://lake/none/manifest.json") && ended.stderr.contains("graph.dataset"),
        "{}",
        ended.stderr
    );
    let ended = run(command(&place, &["prepare", "p.toml", "--upload", "https://host/p"], address));
    assert_eq!(ended.code, 2, "{}", ended.stderr);
}
