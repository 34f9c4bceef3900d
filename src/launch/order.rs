//! What a launcher tells the process that it starts on a host.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cluster::ClusterError;

/// Maximum bytes of an order.
const LONGEST: usize = 4 << 20;

/// The process to start. It has a secret, so it has no `Debug`.
#[derive(Serialize, Deserialize)]
pub(super) struct Order {
    /// The hash of the program.
    pub(super) program_sha256: String,
    /// The working folder: absolute, or below the folder of the login. It is created.
    pub(super) folder: PathBuf,
    /// Files that are written before.
    pub(super) files: Vec<File>,
    pub(super) arguments: Vec<String>,
    pub(super) environment: BTreeMap<String, String>,
    /// Whether the launcher starts the process again when it is lost. Without a connection it is killed then: a signal would end the run.
    pub(super) is_replaced: bool,
}

/// A text file, absolute or below the working folder.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

impl Order {
    /// Returns the order as its length and JSON.
    pub(super) fn encode(&self) -> Result<Vec<u8>, ClusterError> {
        let body = serde_json::to_vec(self)
            .map_err(|error| ClusterError::Usage(format!("cannot send the command: {error}")))?;
        if body.len() > LONGEST {
            let problem = format!("pipeline file and arguments have {} bytes, {LONGEST} are allowed", body.len());
            return Err(ClusterError::Usage(problem));
        }
        Ok([&(body.len() as u32).to_le_bytes()[..], &body].concat())
    }

    /// Reads an order.
    pub(super) fn read(reader: &mut impl Read) -> io::Result<Self> {
        let mut length = [0; 4];
        reader.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > LONGEST {
            return Err(io::Error::new(ErrorKind::InvalidData, format!("an order of {length} bytes")));
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        serde_json::from_slice(&body).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_back_and_long_ones_are_errors() {
        let mut order = Order {
            program_sha256: "00".into(),
            folder: "a b".into(),
            files: vec![File { path: "p.toml".into(), text: "[graph]\n".into() }],
            arguments: vec!["run".into(), "it's \"$HOME\"".into()],
            environment: [("GNNFLOW_SECRET".to_owned(), "s".to_owned())].into(),
            is_replaced: false,
        };
        let bytes = order.encode().unwrap();
        let read = Order::read(&mut &bytes[..]).unwrap();
        assert_eq!((&read.arguments, &read.environment), (&order.arguments, &order.environment));
        assert_eq!(Order::read(&mut &bytes[..9]).err().unwrap().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(Order::read(&mut &[0xff; 8][..]).err().unwrap().kind(), ErrorKind::InvalidData);
        order.files[0].text = "x".repeat(LONGEST);
        assert_eq!(order.encode().unwrap_err().exit_code(), 2);
    }
}
