//! Partition views: the graph of a partition, and the features and degrees of its halo.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use gnnflow_dataflow::batch::halo::HaloRows;
use gnnflow_dataflow::fetch::fetch_degrees::{FetchDegrees, NodeDegrees};
use gnnflow_dataflow::fetch::fetch_rows::FeatureView;
use gnnflow_dataflow::graph::local_graph::LocalGraph;
use gnnflow_dataflow::storage::{Busy, RowReader, RowSource};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::InputHandle;
use timely::dataflow::operators::core::Inspect;
use timely::dataflow::operators::{Input, Probe, probe};

use crate::collectives::{Driver, FirstError};
use crate::context::feature_store::FeatureStore;
use crate::context::{WorkerContext, halo_rows};
use crate::error::Error;
use crate::runtime::job::Job;

/// The graph and the features of a worker's partitions in partition-local training.
pub(crate) struct PartitionViews {
    pub(crate) graph: Arc<LocalGraph>,
    pub(crate) features: FeatureView,
}

impl PartitionViews {
    /// Opens the halos of the partitions hosted here. If the model reads `degrees`, those of halo nodes are fetched once.
    ///
    /// # Errors
    /// When the dataset was prepared without the features of halo nodes.
    pub(crate) fn open(
        driver: &mut Driver<'_>,
        job: &Job,
        context: &WorkerContext,
        degrees: bool,
    ) -> Result<Self, Error> {
        let Some(halo) = halo_rows(job, &context.graph, context.worker)? else {
            let message = "\"partition-parallel\" needs the features of halo nodes, and the dataset has none; prepare it \
                           again with partition.halo = \"features\"";
            return Err(job.config.problem("train.schedule", message));
        };
        let mut graph = LocalGraph::clone(&context.graph).into_partition_views();
        if degrees {
            let found = fetch_degrees(driver, context, halo.index().nodes())?;
            graph = graph.with_known_degrees(halo.index().clone(), found);
        }
        let source = Arc::new(ViewRows { graph: Arc::clone(&context.graph), parts: Arc::clone(&context.parts), halo });
        Ok(Self { graph: Arc::new(graph), features: FeatureView { source, ..context.features.clone() } })
    }
}

/// Rows of own nodes, and of the halo.
struct ViewRows {
    graph: Arc<LocalGraph>,
    parts: Arc<FeatureStore>,
    halo: Arc<HaloRows>,
}

impl RowSource for ViewRows {
    fn row_bytes(&self) -> usize {
        self.parts.row_bytes()
    }

    fn open(&self) -> Result<Box<dyn RowReader + '_>, Busy> {
        Ok(Box::new(self))
    }

    fn reads_ahead(&self) -> bool {
        self.parts.reads_ahead()
    }

    fn will_need(&self, nodes: &[u32]) {
        self.parts.will_need(nodes);
        self.halo.will_need(nodes);
    }
}

impl RowReader for ViewRows {
    fn row(&self, node: u32) -> &[u8] {
        match self.graph.hosts(node) {
            true => self.parts.row(node),
            false => self.halo.find(node).expect("a batch reads its partition and the halo only").row,
        }
    }
}

/// Nodes per request.
const LIST: usize = 1 << 18;

/// Fetches the in-degree of each of `nodes` from their owners. All workers must call it, if need be without nodes.
fn fetch_degrees(driver: &mut Driver<'_>, context: &WorkerContext, nodes: &[u32]) -> Result<Vec<u32>, Error> {
    let (mut input, probe) =
        (InputHandle::<u64, CapacityContainerBuilder<Vec<NodeDegrees>>>::new_with_builder(), probe::Handle::new());
    let found: Rc<RefCell<Vec<NodeDegrees>>> = Rc::default();
    let lists = Rc::clone(&found);
    driver.worker.dataflow::<u64, _, _>(|scope| {
        scope
            .input_from(&mut input)
            .fetch_degrees(Arc::clone(&context.graph), Rc::clone(&context.other_meter))
            .inspect(move |list| lists.borrow_mut().push(list.clone()))
            .probe_with(&probe);
    });
    for (list, nodes) in nodes.chunks(LIST).enumerate() {
        input.send(NodeDegrees::new(list as u32, nodes.to_vec()));
        input.flush();
    }
    input.close();
    driver.run_until(&probe, u64::MAX, &FirstError::default())?;
    let mut lists = found.take();
    lists.sort_unstable_by_key(|list| list.list);
    Ok(lists.into_iter().flat_map(|list| list.degrees).collect())
}
