//! Values that workers send each other in collective operations, as 64-bit words.

use bytemuck::Pod;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;

/// A value that collective operations carry.
///
/// [`Value`]s, vectors of them, strings, [`Json`], options, pairs and lists of payloads.
pub(crate) trait Payload: Sized {
    /// The number of words, if it is the same for all values.
    const WORDS: Option<usize> = None;

    /// Returns the words that are sent.
    fn to_words(&self) -> Vec<u64>;

    /// Reads a value from the words of [`Payload::to_words`].
    ///
    /// # Errors
    /// [`Error::Bug`] if the words are those of no value.
    fn from_words(words: &[u64]) -> Result<Self, Error>;
}

/// A number, or a `#[repr(C)]` struct of numbers: sent as its bytes, so floating-point numbers keep their bits.
pub(crate) trait Value: Pod {}

impl Value for u8 {}
impl Value for u32 {}
impl Value for u64 {}
impl Value for f64 {}
impl Value for [f64; 2] {}
impl Value for [u64; 4] {}
impl Value for [u8; 32] {}

/// Text in JSON. Not for floating-point numbers that must keep their bits.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

/// A vector of payloads, each with its number of words before it.
#[derive(Debug)]
pub(crate) struct List<T>(pub(crate) Vec<T>);

impl<T: Value> Payload for T {
    const WORDS: Option<usize> = Some(size_of::<T>().div_ceil(8));

    fn to_words(&self) -> Vec<u64> {
        packed(bytemuck::bytes_of(self))
    }

    fn from_words(words: &[u64]) -> Result<Self, Error> {
        let bytes = bytemuck::cast_slice(words).get(..size_of::<T>()).ok_or_else(short)?;
        Ok(bytemuck::pod_read_unaligned(bytes))
    }
}

impl Payload for () {
    const WORDS: Option<usize> = Some(0);

    fn to_words(&self) -> Vec<u64> {
        Vec::new()
    }

    fn from_words(_: &[u64]) -> Result<Self, Error> {
        Ok(())
    }
}

impl<T: Value> Payload for Vec<T> {
    fn to_words(&self) -> Vec<u64> {
        let words = packed(bytemuck::cast_slice(self));
        // If values do not fill words, the number of words does not determine the number of values.
        if size_of::<T>().is_multiple_of(8) { words } else { [&[self.len() as u64], &words[..]].concat() }
    }

    fn from_words(words: &[u64]) -> Result<Self, Error> {
        let (len, words) = if size_of::<T>().is_multiple_of(8) {
            (8 * words.len() / size_of::<T>(), words)
        } else {
            let (&len, rest) = words.split_first().ok_or_else(short)?;
            (len as usize, rest)
        };
        let bytes = len.checked_mul(size_of::<T>()).and_then(|bytes| bytemuck::cast_slice(words).get(..bytes));
        let mut values = vec![T::zeroed(); bytes.ok_or_else(short)?.len() / size_of::<T>()];
        bytemuck::cast_slice_mut::<T, u8>(&mut values).copy_from_slice(bytes.ok_or_else(short)?);
        Ok(values)
    }
}

impl Payload for String {
    fn to_words(&self) -> Vec<u64> {
        let words = packed(self.as_bytes());
        [&[self.len() as u64], &words[..]].concat()
    }

    fn from_words(words: &[u64]) -> Result<Self, Error> {
        String::from_utf8(Vec::from_words(words)?).map_err(|error| Error::Bug(format!("a message: {error}")))
    }
}

impl<T: Serialize + DeserializeOwned> Payload for Json<T> {
    fn to_words(&self) -> Vec<u64> {
        serde_json::to_string(&self.0).expect("values that are sent are JSON").to_words()
    }

    fn from_words(words: &[u64]) -> Result<Self, Error> {
        let text = String::from_words(words)?;
        serde_json::from_str(&text).map(Self).map_err(|error| Error::Bug(format!("a message: {error}")))
    }
}

impl<T: Payload> Payload for Option<T> {
    fn to_words(&self) -> Vec<u64> {
        self.as_ref().map_or_else(Vec::new, |value| [&[1], &value.to_words()[..]].concat())
    }

    fn from_words(words: &[u64]) -> Result<Self, Error> {
        words.split_first().map(|(_, rest)| T::from_words(rest)).transpose()
    }
}

impl<A: Payload, B: Payload> Payload for (A, B) {
    fn to_words(&self) -> Vec<u64> {
        let (first, second) = (self.0.to_words(), self.1.to_words());
        let len = [first.len() as u64];
        [if A::WORDS.is_some() { &[] } else { &len[..] }, &first, &second].concat()
    }

    fn from_words(words: &[u64]) -> Result<Self, Error> {
        let (len, words) = match A::WORDS {
            Some(len) => (len, words),
            None => words.split_first().map(|(&len, rest)| (len as usize, rest)).ok_or_else(short)?,
        };
        let (first, second) = words.split_at_checked(len).ok_or_else(short)?;
        Ok((A::from_words(first)?, B::from_words(second)?))
    }
}

impl<T: Payload> Payload for List<T> {
    fn to_words(&self) -> Vec<u64> {
        let items = self.0.iter().map(Payload::to_words);
        items.flat_map(|words| std::iter::once(words.len() as u64).chain(words)).collect()
    }

    fn from_words(mut words: &[u64]) -> Result<Self, Error> {
        let mut items = Vec::new();
        while let Some((&len, rest)) = words.split_first() {
            let (item, rest) = rest.split_at_checked(len as usize).ok_or_else(short)?;
            items.push(T::from_words(item)?);
            words = rest;
        }
        Ok(Self(items))
    }
}

/// Bytes as words; the last word is filled with zeros.
fn packed(bytes: &[u8]) -> Vec<u64> {
    let mut words = vec![0u64; bytes.len().div_ceil(8)];
    bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
    words
}

fn short() -> Error {
    Error::Bug("a message between workers is too short".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytemuck::Zeroable;

    /// Sends a value to itself.
    fn sent<T: Payload>(value: &T) -> T {
        let words = value.to_words();
        assert!(T::WORDS.is_none_or(|len| len == words.len()));
        T::from_words(&words).unwrap()
    }

    #[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
    #[repr(C)]
    struct Pair {
        small: u32,
        large: f32,
        bits: f64,
    }

    impl Value for Pair {}

    #[test]
    fn payloads_equal_the_sent_values() {
        let pair = Pair { small: 7, large: f32::MIN_POSITIVE, bits: 0.1 + 0.2 };
        assert_eq!(sent(&pair), pair);
        assert_eq!((sent(&u64::MAX), sent(&3u8)), (u64::MAX, 3));
        for text in ["", "127.0.0.1:80", "exactly8", "a.host.of.some.length:65535", "é"] {
            assert_eq!(sent(&text.to_owned()), text);
        }
        for len in [0, 1, 7, 8, 9] {
            let (bytes, numbers) = (vec![1u8; len], vec![f64::NAN; len]);
            assert_eq!(sent(&bytes), bytes);
            assert_eq!(sent(&numbers).len(), len);
            assert_eq!(sent(&vec![pair; len]), vec![pair; len]);
            let nested = Some(((bytes.clone(), "x".repeat(len)), numbers.len() as u64));
            assert_eq!(sent(&nested), nested);
        }
        assert_eq!(sent(&None::<u64>), None);
        assert_eq!(sent(&Some(String::new())), Some(String::new()));
        assert_eq!(sent(&Json(vec!["a".to_owned()])).0, ["a"]);
        for len in [0, 1, 3] {
            let list = vec![(vec![7u64; len], vec![0.5; 2 * len]); len];
            assert_eq!(sent(&List(list.clone())).0, list);
        }
        assert!(sent(&f64::from_bits(0x7ff8_0000_0000_0001)).is_nan());
    }

    #[test]
    fn truncated_words_are_refused() {
        let text = "some text".to_owned().to_words();
        assert!(String::from_words(&text[..1]).is_err() && String::from_words(&[]).is_err());
        assert!(Pair::from_words(&[1]).is_err() && Vec::<u8>::from_words(&[u64::MAX]).is_err());
        assert!(List::<u64>::from_words(&[1]).is_err() && List::<u64>::from_words(&[0]).is_err());
        assert!(<(String, u64)>::from_words(&[9, 1]).is_err() && Json::<u64>::from_words(&text).is_err());
    }
}
