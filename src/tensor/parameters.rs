//! A graph worker as a parameter server: weights by version, for tensor workers that have proven the secret.

use std::sync::Arc;
use std::time::Duration;

use arrow_flight::{FlightData, Ticket};
use gnnflow_pipelines::parameters::ParameterVersions;
use serde::{Deserialize, Serialize};
use tonic::Status;

use super::auth::{Known, refusal};
use super::matrices::{Matrices, Name, numbers, plain};

/// How long a version is waited for that another process has already.
const LATE: Duration = Duration::from_secs(10);

/// Which weights.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Wanted {
    version: u64,
}

/// What is handed out.
pub(super) struct Parameters {
    pub(super) service: Arc<ParameterVersions>,
}

impl Parameters {
    /// The messages of a version.
    pub(super) async fn get(self: Arc<Self>, ticket: Ticket) -> Result<Vec<FlightData>, Status> {
        let Wanted { version } = serde_json::from_slice(&ticket.ticket)
            .map_err(|error| Status::invalid_argument(format!("not a version of parameters: {error}")))?;
        let found = tokio::task::spawn_blocking(move || self.service.get(version, LATE)).await;
        let flat = found.map_err(|error| Status::internal(error.to_string()))?;
        let flat = flat.ok_or_else(|| Status::not_found(format!("no parameters of version {version} here")))?;
        numbers(Name::Flat, &flat, 1).map_err(Status::internal)
    }
}

/// Fetches a version from a server.
pub(super) async fn fetch(server: &Known, version: u64) -> Result<Vec<f32>, String> {
    let ticket = serde_json::to_vec(&Wanted { version }).map_err(|error| error.to_string())?;
    let (mut client, request) = server.ask(Ticket { ticket: ticket.into() })?;
    let heard = client.do_get(request).await.map_err(|status| refusal(&status))?.into_inner();
    match Matrices::new(heard).next().await? {
        Some((Name::Flat, matrix)) => plain(matrix),
        _ => Err("sent no parameters".to_owned()),
    }
}
