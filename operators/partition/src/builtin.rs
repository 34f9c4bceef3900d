//! The built-in methods by name.

use gnnflow_data::Partitioner;
use gnnflow_data::dump::PartTable;

use super::dbh::Dbh;
use super::degrees::Degrees;
use super::fennel::Fennel;
use super::file::File;
use super::greedy::Greedy;
use super::hdrf::Hdrf;
use super::ldg::Ldg;
use super::metis::Metis;
use super::multilevel::Multilevel;
use super::random::Random;
use super::range::Range;
use super::spring::Spring;
use super::two_ps_l::TwoPsL;
use super::vertex_cut::VertexCut;

/// Settings of the built-in methods. Each method reads the fields that it uses; `None` is its default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Exact or online degrees, for `spring` and the vertex cuts.
    pub degrees: Option<Degrees>,
    /// Bound on a cluster's volume relative to the mean volume of a part, for `spring` and `2ps-l`.
    pub volume: Option<f64>,
    /// Bound the core nodes of a part by the node balance, for the vertex cuts.
    pub hold_balance: Option<bool>,
    /// The table of parts, for `file`.
    pub file: PartTable,
}

/// Returns the built-in method named `method`.
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
