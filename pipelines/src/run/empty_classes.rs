//! A warning of classes without training nodes.

use super::Run;
use crate::collectives::Driver;
use crate::error::Error;
use crate::task::Task;

/// The warning lists at most this many classes.
const LISTED: usize = 5;

impl Run<'_> {
    /// Warns of classes without training nodes.
    pub(super) fn warn_of_empty_classes(&mut self, driver: &mut Driver<'_>) -> Result<(), Error> {
        let Task::Nodes(task) = &self.task else { return Ok(()) };
        let mut own = Vec::new();
        for part in self.context.placement.parts_of(self.context.worker) {
            let counts = task.class_counts(part);
            own.resize(counts.len(), 0);
            own.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        let counts = self.collectives.all_reduce_counts(driver, &own)?;
        let empty: Vec<usize> = (0..counts.len()).filter(|&class| counts[class] == 0).collect();
        if self.context.worker == 0 && !empty.is_empty() {
            let mut names: Vec<String> = empty.iter().take(LISTED).map(|&class| task.class_name(class)).collect();
            if empty.len() > LISTED {
                names.push(format!("{} more", empty.len() - LISTED));
            }
            let (missing, all) = (empty.len(), counts.len());
            let line = format!(
                "{missing} of {all} classes have no training nodes: {}; they cannot be learned",
                names.join(", ")
            );
            driver.runtime.warn(&line);
        }
        Ok(())
    }
}
