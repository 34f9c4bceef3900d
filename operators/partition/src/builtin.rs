//! The built-in methods by their names.

use gnnflow_data::Partitioner;
use gnnflow_data::dump::PartTable;

use super::{
    Dbh, Degrees, Fennel, File, Greedy, Hdrf, Ldg, Metis, Multilevel, Random, Range, Spring, TwoPsL, VertexCut,
};

/// What a pipeline can say to the built-in methods. Each looks at what concerns it; what is unset is its default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Exact degrees or online ones: `spring` and the vertex cuts.
    pub degrees: Option<Degrees>,
    /// Bound on a cluster's volume, as a share of a part's mean volume: `spring` and `2ps-l`.
    pub volume: Option<f64>,
    /// Hold core nodes to the node balance: the vertex cuts.
    pub hold_balance: Option<bool>,
    /// Where the parts stand: `file`.
    pub file: PartTable,
}

/// The built-in method of this name, if there is one.
///
/// ```
/// use gnnflow_partition::{Settings, builtin};
///
/// let spring = builtin("spring", &Settings { volume: Some(0.5), ..Settings::default() }).unwrap();
/// assert_eq!((spring.name(), spring.settings().as_str()), ("spring", "degrees = exact, volume = 0.5"));
/// assert!(builtin("summer", &Settings::default()).is_none());
/// ```
pub fn builtin(method: &str, settings: &Settings) -> Option<Box<dyn Partitioner>> {
    let degrees = settings.degrees.unwrap_or_default();
    let cut = VertexCut { degrees, hold_balance: settings.hold_balance.unwrap_or_default() };
    Some(match method {
        "random" => Box::new(Random),
        "range" => Box::new(Range),
        "spring" => Box::new(Spring { degrees, volume: settings.volume.unwrap_or(Spring::VOLUME) }),
        "file" => Box::new(File::new(settings.file.clone())),
        "dbh" => Box::new(Dbh(cut)),
        "greedy" => Box::new(Greedy(cut)),
        "hdrf" => Box::new(Hdrf(cut)),
        "2ps-l" => Box::new(TwoPsL { cut, volume: settings.volume.unwrap_or(TwoPsL::VOLUME) }),
        "ldg" => Box::new(Ldg),
        "fennel" => Box::new(Fennel),
        "metis" => Box::new(Metis),
        "multilevel" => Box::new(Multilevel),
        _ => return None,
    })
}
