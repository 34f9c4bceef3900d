//! Azure blob storage, served by Azurite.

use super::server::Server;
use crate::common::TestDir;
use ring::hmac;

/// The fixed account and key of Azurite.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Starts Azurite with the graph's files in container `graphs`.
pub(crate) fn start(place: &TestDir) -> Option<Server> {
    let arguments = |port: u16| {
        let args = ["--blobHost", "127.0.0.1", "--blobPort", &port.to_string(), "--inMemoryPersistence"];
        let args = args.iter().map(ToString::to_string).chain(["--skipApiVersionCheck".into(), "--silent".into()]);
        (args.collect(), &[] as &[(&str, &str)])
    };
    let server = Server::start("GNNFLOW_AZURITE_BLOB", "azurite-blob", arguments)?;
    put(&server, "/graphs", Some("container"), b"");
    let edges = std::fs::read(place.path("graph/edges.parquet")).unwrap();
    put(&server, "/graphs/nodes.parquet", None, &std::fs::read(place.path("graph/nodes.parquet")).unwrap());
    put(&server, "/graphs/dump/edges/a.parquet", None, &edges);
    put(&server, "/graphs/dump/edges/b.parquet", None, &edges);
    put(&server, "/graphs/dump/edges/_SUCCESS", None, b"");
    Some(server)
}

/// Uploads a blob, or creates a container, with a shared key (learn.microsoft.com, "Authorize with Shared Key").
fn put(server: &Server, path: &str, restype: Option<&str>, body: &[u8]) {
    let (date, version) = ("Fri, 20 Nov 2026 09:00:00 GMT", "2021-12-02");
    let blob = if restype.is_none() { "x-ms-blob-type:BlockBlob\n" } else { "" };
    let length = if body.is_empty() { String::new() } else { body.len().to_string() };
    let resource = restype.map_or_else(String::new, |restype| format!("\nrestype:{restype}"));
    let text = format!(
        "PUT\n\n\n{length}\n\n\n\n\n\n\n\n\n{blob}x-ms-date:{date}\nx-ms-version:{version}\n/{ACCOUNT}/{ACCOUNT}{path}{resource}"
    );
    let signed = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &decode(KEY)), text.as_bytes());
    let signature = format!("SharedKey {ACCOUNT}:{}", encode(signed.as_ref()));
    let mut headers = vec![("x-ms-date", date), ("x-ms-version", version), ("Authorization", signature.as_str())];
    if restype.is_none() {
        headers.push(("x-ms-blob-type", "BlockBlob"));
    }
    let query = restype.map_or_else(String::new, |restype| format!("?restype={restype}"));
    server.put(&format!("/{ACCOUNT}{path}{query}"), body, &headers);
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let word = three.iter().fold(0u32, |word, &byte| word << 8 | u32::from(byte)) << (8 * (3 - three.len()));
        for i in 0..4 {
            let letter = BASE64[(word >> (18 - 6 * i)) as usize & 63];
            text.push(if i <= three.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

fn decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for four in text.trim_end_matches('=').as_bytes().chunks(4) {
        let value = |letter: &u8| BASE64.iter().position(|known| known == letter).unwrap() as u32;
        let word = four.iter().fold(0, |word, letter| word << 6 | value(letter)) << (6 * (4 - four.len()));
        bytes.extend(&word.to_be_bytes()[1..four.len()]);
    }
    bytes
}
