//! Edge types that are strings: numbered as they come, by whichever thread meets them first, and renumbered in the order of
//! their names when all are known.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow::array::{Array, LargeStringArray};

use crate::dataset::TypeInfo;
use crate::error::{Error, Result};

/// The types met so far.
#[derive(Default)]
pub(super) struct TypeNames {
    names: Mutex<HashMap<String, u16>>,
    /// Number of types when they are integers.
    count: AtomicU32,
}

impl TypeNames {
    /// Notes the largest integer of a chunk.
    pub(super) fn saw(&self, largest: Option<u16>) {
        if let Some(largest) = largest {
            self.count.fetch_max(u32::from(largest) + 1, Ordering::Relaxed);
        }
    }

    /// Provisional codes.
    pub(super) fn codes(&self, texts: &LargeStringArray) -> Result<Vec<u16>> {
        let mut known: HashMap<&str, u16> = HashMap::new();
        let mut codes = Vec::with_capacity(texts.len());
        for text in texts.iter().flatten() {
            let code = match known.get(text) {
                Some(&code) => code,
                None => {
                    let code = self.code(text)?;
                    known.insert(text, code);
                    code
                }
            };
            codes.push(code);
        }
        Ok(codes)
    }

    fn code(&self, text: &str) -> Result<u16> {
        let mut names = self.names.lock().map_err(|_| Error::Bug("a reading thread panicked".into()))?;
        if let Some(&code) = names.get(text) {
            return Ok(code);
        }
        let limit = u64::from(u16::MAX);
        let code = u16::try_from(names.len()).ok().filter(|&code| u64::from(code) < limit);
        let code = code.ok_or(Error::TooLarge { what: "number of edge types".into(), found: limit + 1, limit })?;
        names.insert(text.to_string(), code);
        Ok(code)
    }

    /// The final numbering: what there is, and the final code of each provisional one (`None`: codes are final).
    pub(super) fn finish(self) -> Result<(TypeInfo, Option<Vec<u16>>)> {
        let names = self.names.into_inner().map_err(|_| Error::Bug("a reading thread panicked".into()))?;
        if names.is_empty() {
            return Ok((TypeInfo { count: self.count.into_inner(), names: Vec::new() }, None));
        }
        let mut sorted: Vec<(String, u16)> = names.into_iter().collect();
        sorted.sort();
        let mut remap = vec![0; sorted.len()];
        sorted.iter().zip(0..).for_each(|((_, provisional), code)| remap[usize::from(*provisional)] = code);
        let names: Vec<String> = sorted.into_iter().map(|(name, _)| name).collect();
        Ok((TypeInfo { count: names.len() as u32, names }, Some(remap)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn final_codes_follow_the_names() {
        let types = TypeNames::default();
        let first = types.codes(&LargeStringArray::from(vec!["likes", "cites", "likes"])).unwrap();
        let second = types.codes(&LargeStringArray::from(vec!["authors", "cites"])).unwrap();
        let (info, remap) = types.finish().unwrap();
        let remap = remap.unwrap();
        assert_eq!(info.names, ["authors", "cites", "likes"]);
        assert_eq!(first.iter().map(|&c| remap[c as usize]).collect::<Vec<_>>(), [2, 1, 2]);
        assert_eq!(second.iter().map(|&c| remap[c as usize]).collect::<Vec<_>>(), [0, 1]);
    }
}
