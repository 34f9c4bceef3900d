//! A graph worker's way to a tensor worker that it has met: one call after another, of one task or several.

use std::time::Duration;

use gnnflow_nn::model::ModelSpec;
use gnnflow_pipelines::parameters::ParameterVersion;
use gnnflow_pipelines::tensor::{Asked, TensorResult, TensorWorker};

use super::auth::{Known, refusal};
use super::matrices::Matrices;
use super::service::AHEAD;
use super::wire::{self, Question};

/// A tensor worker that knows the secret.
pub(super) struct Met {
    pub(super) runtime: tokio::runtime::Handle,
    pub(super) known: Known,
    pub(super) model: ModelSpec,
    pub(super) run: String,
    /// Where parameters are served: by each process of the run, and by this one.
    pub(super) servers: Vec<String>,
    pub(super) own: String,
}

type Answered<'a> = &'a mut dyn FnMut(usize, TensorResult) -> Result<(), String>;

impl Met {
    fn question(&self, tasks: &[Asked], choice: ParameterVersion) -> Result<Question, String> {
        let first = &tasks.first().ok_or("was asked for nothing")?.task;
        let mut servers: Vec<String> = self.servers.get(choice.server).cloned().into_iter().collect();
        if !servers.contains(&self.own) {
            servers.push(self.own.clone());
        }
        Ok(Question {
            model: self.model.clone(),
            run: self.run.clone(),
            version: choice.version,
            servers,
            index: first.index,
            asks: wire::asks(first),
            tasks: tasks.iter().map(wire::one).collect(),
        })
    }

    async fn exchange(
        &self,
        tasks: &[Asked],
        choice: ParameterVersion,
        limit: Duration,
        answered: Answered<'_>,
    ) -> Result<(), String> {
        let late = |_| format!("has not answered for {} s", limit.as_secs_f64());
        let (say, said) = tokio::sync::mpsc::channel(AHEAD);
        let said = futures_util::stream::unfold(said, |mut said: tokio::sync::mpsc::Receiver<_>| async move {
            said.recv().await.map(|message| (message, said))
        });
        let (mut client, request) = self.known.ask(said)?;
        let messages = wire::ask(tasks, &self.question(tasks, choice)?)?;
        let send = async move {
            for messages in messages {
                for message in messages? {
                    if say.send(message).await.is_err() {
                        return Ok(()); // it has heard enough, and says why
                    }
                }
            }
            Ok::<(), String>(())
        };
        let receive = async {
            let heard = tokio::time::timeout(limit, client.do_exchange(request)).await.map_err(late)?;
            let heard = heard.map_err(|status| refusal(&status))?;
            let mut matrices = Matrices::new(heard.into_inner());
            for (place, asked) in tasks.iter().enumerate() {
                let result = tokio::time::timeout(limit, wire::read(&mut matrices, asked.task.count)).await;
                answered(place, result.map_err(late)??)?;
            }
            Ok::<(), String>(())
        };
        // Who receives has a deadline, and when it gives up, nothing more is sent.
        futures_util::future::try_join(send, receive).await.map(|_| ())
    }
}

impl TensorWorker for Met {
    fn call(
        &self,
        tasks: &[Asked],
        choice: ParameterVersion,
        limit: Duration,
        answered: Answered<'_>,
    ) -> Result<(), String> {
        self.runtime.block_on(self.exchange(tasks, choice, limit, answered))
    }
}
