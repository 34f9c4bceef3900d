//! A graph worker as a parameter server: it sends versions of the parameters to tensor workers that have proven the secret.

use std::sync::Arc;
use std::time::Duration;

use arrow_flight::{FlightData, Ticket};
use gnnflow_pipelines::parameter_versions::ParameterVersions;
use serde::{Deserialize, Serialize};
use tonic::Status;

use super::client::{Client, describe};
use super::matrices::{Matrices, Name, floats, numbers};

/// Maximum wait for a version that another process has already published.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

/// The ticket of a request for parameters.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct ParameterRequest {
    version: u64,
}

/// The parameters that this process serves.
pub(super) struct ParameterServer {
    pub(super) versions: Arc<ParameterVersions>,
}

impl ParameterServer {
    /// Returns the messages of a version.
    pub(super) async fn get(self: Arc<Self>, ticket: Ticket) -> Result<Vec<FlightData>, Status> {
        let ParameterRequest { version } = serde_json::from_slice(&ticket.ticket)
            .map_err(|error| Status::invalid_argument(format!("not a request for parameters: {error}")))?;
        let found = tokio::task::spawn_blocking(move || self.versions.get(version, VERSION_TIMEOUT)).await;
        let flat = found.map_err(|error| Status::internal(error.to_string()))?;
        let flat =
            flat.ok_or_else(|| Status::not_found(format!("this process has no parameters of version {version}")))?;
        numbers(Name::Flat, &flat, 1).map_err(Status::internal)
    }
}

/// Fetches a version from a server.
///
/// # Errors
/// If the server fails or does not have it.
pub(super) async fn fetch(server: &Client, version: u64) -> Result<Vec<f32>, String> {
    let ticket = serde_json::to_vec(&ParameterRequest { version }).map_err(|error| error.to_string())?;
    let response =
        server.clone().do_get(Ticket { ticket: ticket.into() }).await.map_err(|status| describe(&status))?.into_inner();
    match Matrices::new(response).next().await? {
        Some((Name::Flat, matrix)) => floats(matrix),
        _ => Err("sent no parameters".to_owned()),
    }
}
