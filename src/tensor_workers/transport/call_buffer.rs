//! The buffer of a call at a tensor worker (Dorylus, section 6: Lambda-internal streaming).
//!
//! A task receives the next rows and sends finished results while a thread computes.

use std::time::Duration;

use arrow_flight::FlightData;
use gnnflow_kernels::matrix::Matrix;
use gnnflow_nn::node_task::{NodeRows, Work};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tonic::Status;

use super::matrices::Matrices;
use super::wire::{self, TaskHeader, TaskKind};

/// Time limit of each wait within a call: for rows, for parameters, and for the client to read results.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Pieces that are received before the computing thread needs them.
const READ_AHEAD: usize = 2;

/// Input of the computing thread.
pub(super) enum Piece {
    /// Rows of a task, or of one half of a task.
    Rows(NodeRows),
    /// The targets or output gradients of a task.
    Work(Work),
}

/// Waits for `future`, at most [`STEP_TIMEOUT`].
///
/// # Errors
/// If it takes longer.
pub(super) async fn in_time<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let late = |_| "the task's rows or parameters did not arrive in time".to_owned();
    tokio::time::timeout(STEP_TIMEOUT, future).await.map_err(late)
}

/// Makes the channel from the receiving task to the computing thread.
pub(super) fn pieces() -> (mpsc::Sender<Piece>, mpsc::Receiver<Piece>) {
    mpsc::channel(READ_AHEAD)
}

/// Reads the matrices of `tasks` and passes them to the computing thread.
///
/// # Errors
/// A text if the matrices are malformed; `None` if the computing thread has ended.
pub(super) async fn read_pieces(
    mut matrices: Matrices,
    kind: TaskKind,
    tasks: Vec<TaskHeader>,
    pieces: mpsc::Sender<Piece>,
) -> Result<(), Option<String>> {
    for task in tasks {
        for range in task.ranges() {
            let mut rows = NodeRows::default();
            for _ in 0..task.rows {
                let next = in_time(matrices.next()).await??;
                let (name, matrix) = next.ok_or("sent fewer matrices than the call's header says".to_owned())?;
                if row_count(&matrix) != range.len() && matrix.dim > 0 {
                    return Err(Some(format!("sent {} rows for {} nodes", row_count(&matrix), range.len())));
                }
                wire::set_rows(&mut rows, name, matrix)?;
            }
            pieces.send(Piece::Rows(rows)).await.map_err(|_| None)?;
        }
        if !kind.is_forward() {
            let mut matrices_of_work = Vec::new();
            for _ in 0..task.work {
                let next = in_time(matrices.next()).await??;
                matrices_of_work.push(next.ok_or("sent fewer matrices than the call's header says".to_owned())?);
            }
            pieces.send(Piece::Work(wire::work(kind, matrices_of_work)?)).await.map_err(|_| None)?;
        }
    }
    Ok(())
}

fn row_count(matrix: &Matrix) -> usize {
    matrix.bytes().len().checked_div(matrix.row_bytes()).unwrap_or(0)
}

/// The computing thread's side of a call.
pub(super) struct CallBuffer {
    pub(super) pieces: mpsc::Receiver<Piece>,
    pub(super) responses: mpsc::Sender<Result<FlightData, Status>>,
    pub(super) runtime: Handle,
}

impl CallBuffer {
    /// Waits for the next rows.
    ///
    /// # Errors
    /// If they do not arrive.
    pub(super) fn rows(&mut self) -> Result<NodeRows, String> {
        match self.pieces.blocking_recv() {
            Some(Piece::Rows(rows)) => Ok(rows),
            _ => Err("the task's rows did not arrive".to_owned()),
        }
    }

    /// Waits for the targets or output gradients of a task.
    ///
    /// # Errors
    /// If they do not arrive.
    pub(super) fn work(&mut self) -> Result<Work, String> {
        match self.pieces.blocking_recv() {
            Some(Piece::Work(work)) => Ok(work),
            _ => Err("the task's targets or gradients did not arrive".to_owned()),
        }
    }

    /// Sends a part of the results.
    ///
    /// # Errors
    /// If the client does not read it in time.
    pub(super) fn send(&self, messages: Vec<FlightData>) -> Result<(), String> {
        for message in messages {
            let sent = self
                .runtime
                .block_on(async { tokio::time::timeout(STEP_TIMEOUT, self.responses.send(Ok(message))).await });
            if !matches!(sent, Ok(Ok(()))) {
                return Err("the client does not read the results".to_owned());
            }
        }
        Ok(())
    }
}
