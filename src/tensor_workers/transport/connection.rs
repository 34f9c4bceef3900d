//! A graph worker's connection to a tensor worker: it sends the tasks of a call and reads the results.

use std::time::Duration;

use gnnflow_nn::model::ModelSpec;
use gnnflow_nn::node_task::NodeResult;
use gnnflow_nn::parameter_versions::ParameterVersion;

use super::client::{Client, describe};
use super::device_kind::DeviceKind;
use super::matrices::Matrices;
use super::service::{QUEUED_MESSAGES, stream_of};
use super::wire::{self, CallHeader};
use crate::tensor_workers::scheduler::{TaskRequest, TensorWorker};

/// A connection to a tensor worker that has proven the secret.
pub(super) struct Connection {
    pub(super) runtime: tokio::runtime::Handle,
    pub(super) client: Client,
    pub(super) model: ModelSpec,
    pub(super) run: String,
    /// The kind of device that must compute.
    pub(super) device: DeviceKind,
    /// The key `cluster.encrypt`.
    pub(super) encrypt: Option<bool>,
    /// Addresses at which the processes of the run serve parameters, by rank.
    pub(super) servers: Vec<String>,
    /// The address of this process among them.
    pub(super) own: String,
}

impl Connection {
    fn header(&self, tasks: &[TaskRequest], version: ParameterVersion) -> Result<CallHeader, String> {
        let first = &tasks.first().ok_or("got a call without tasks")?.task;
        let mut servers: Vec<String> = self.servers.get(version.server).cloned().into_iter().collect();
        if !servers.contains(&self.own) {
            servers.push(self.own.clone());
        }
        Ok(CallHeader {
            model: self.model.clone(),
            run: self.run.clone(),
            device: self.device.clone(),
            encrypt: self.encrypt,
            version: version.version,
            servers,
            index: first.index,
            kind: wire::kind(first),
            tasks: tasks.iter().map(wire::header).collect(),
        })
    }
}

impl TensorWorker for Connection {
    fn call(
        &self,
        tasks: &[TaskRequest],
        version: ParameterVersion,
        limit: Duration,
        on_result: &mut dyn FnMut(usize, NodeResult) -> Result<(), String>,
    ) -> Result<(), String> {
        let late = |_| format!("has not answered for {} s", limit.as_secs_f64());
        let (sender, receiver) = tokio::sync::mpsc::channel(QUEUED_MESSAGES);
        let mut client = self.client.clone();
        let messages = wire::call(tasks, &self.header(tasks, version)?)?;
        let send = async move {
            for messages in messages {
                for message in messages? {
                    if sender.send(message).await.is_err() {
                        return Ok(()); // the worker has ended the call, and the response says why
                    }
                }
            }
            Ok::<(), String>(())
        };
        let receive = async {
            let response = tokio::time::timeout(limit, client.do_exchange(stream_of(receiver))).await.map_err(late)?;
            let response = response.map_err(|status| describe(&status))?;
            let mut matrices = Matrices::new(response.into_inner());
            for (position, request) in tasks.iter().enumerate() {
                let result = tokio::time::timeout(limit, wire::read(&mut matrices, request.task.count)).await;
                on_result(position, result.map_err(late)??)?;
            }
            Ok::<(), String>(())
        };
        // Only the receiver has a deadline. When it gives up, the sender stops too.
        self.runtime.block_on(futures_util::future::try_join(send, receive)).map(|_| ())
    }
}
