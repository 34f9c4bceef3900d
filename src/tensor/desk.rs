//! Where a call's rows come in and its answers go out, while a thread computes between the two (Dorylus, section 6: Lambda-internal
//! streaming): what comes next is read while what has come is computed, and what is done leaves meanwhile.

use std::time::Duration;

use arrow_flight::FlightData;
use gnnflow_kernels::matrix::Matrix;
use gnnflow_pipelines::tensor::{NodeRows, Work};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tonic::Status;

use super::matrices::Matrices;
use super::wire::{self, Asks, One};

/// How long anybody is waited for: for rows of a call that has begun, for parameters, for who reads the answers.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Pieces that are read ahead of who computes.
const AHEAD: usize = 2;

/// What is computed with.
pub(super) enum Piece {
    /// Rows of a task, or of a half of one.
    Rows(NodeRows),
    /// What its results are compared with.
    Late(Work),
}

/// Waits for something, but not for ever.
pub(super) async fn in_time<T>(what: impl Future<Output = T>) -> Result<T, String> {
    let late = |_| "the task's rows, or its parameters, did not come in time".to_owned();
    tokio::time::timeout(PATIENCE, what).await.map_err(late)
}

/// The two ends of the way from who reads to who computes.
pub(super) fn pieces() -> (mpsc::Sender<Piece>, mpsc::Receiver<Piece>) {
    mpsc::channel(AHEAD)
}

/// Reads the matrices of `tasks` and gives them to who computes.
///
/// # Errors
/// What is wrong with them, in words; nothing when nobody computes any more.
pub(super) async fn read(
    mut matrices: Matrices,
    asks: Asks,
    tasks: Vec<One>,
    give: mpsc::Sender<Piece>,
) -> Result<(), Option<String>> {
    for one in tasks {
        for piece in one.pieces() {
            let mut rows = NodeRows::default();
            for _ in 0..one.rows {
                let (name, matrix) = in_time(matrices.next()).await??.ok_or("fewer rows than were said".to_owned())?;
                if rows_of(&matrix) != piece.len() && matrix.dim > 0 {
                    return Err(Some(format!("{} rows for {} nodes", rows_of(&matrix), piece.len())));
                }
                wire::place_row(&mut rows, name, matrix)?;
            }
            give.send(Piece::Rows(rows)).await.map_err(|_| None)?;
        }
        if asks != Asks::Forward {
            let mut parts = Vec::new();
            for _ in 0..one.late {
                parts.push(in_time(matrices.next()).await??.ok_or("less to compare with than was said".to_owned())?);
            }
            give.send(Piece::Late(wire::work(asks, parts)?)).await.map_err(|_| None)?;
        }
    }
    Ok(())
}

fn rows_of(matrix: &Matrix) -> usize {
    matrix.bytes().len().checked_div(matrix.row_bytes()).unwrap_or(0)
}

/// What a computing thread has of its call.
pub(super) struct Desk {
    pub(super) given: mpsc::Receiver<Piece>,
    pub(super) say: mpsc::Sender<Result<FlightData, Status>>,
    pub(super) runtime: Handle,
}

impl Desk {
    /// The next rows.
    pub(super) fn rows(&mut self) -> Result<NodeRows, String> {
        match self.given.blocking_recv() {
            Some(Piece::Rows(rows)) => Ok(rows),
            _ => Err("the task's rows did not come".to_owned()),
        }
    }

    /// What the results of the rows are compared with.
    pub(super) fn late(&mut self) -> Result<Work, String> {
        match self.given.blocking_recv() {
            Some(Piece::Late(work)) => Ok(work),
            _ => Err("what a task is compared with did not come".to_owned()),
        }
    }

    /// Sends a part of the answer.
    pub(super) fn say(&self, messages: Vec<FlightData>) -> Result<(), String> {
        for message in messages {
            let sent =
                self.runtime.block_on(async { tokio::time::timeout(PATIENCE, self.say.send(Ok(message))).await });
            if !matches!(sent, Ok(Ok(()))) {
                return Err("nobody reads the answer".to_owned());
            }
        }
        Ok(())
    }
}
