//! The end of a process after a bus error: a mapped file was cut short, or its disk cannot be read.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Codes of the signal: there is no such page, or it cannot be read. Others are errors of the program or of the memory, or a signal of another process.
const BEHIND_THE_END: libc::c_int = 2;
const FROM_THE_DISK: libc::c_int = 3;

/// Bytes of a line of `/proc/self/maps`: a path has at most 4096.
const LINE: usize = 8192;

/// Makes bus errors in mapped files end the process with one line that names the file, and exit code 3, or 4 if the file has its length. Others end
/// it as before.
pub(super) fn name_the_file() {
    // SAFETY: `action` is valid, and `end` calls async-signal-safe functions only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction =
            end as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

/// Allocates nothing and takes no locks.
extern "C" fn end(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    static ENDING: AtomicBool = AtomicBool::new(false);
    while ENDING.swap(true, Ordering::Relaxed) {
        // SAFETY: it has no arguments. Another thread ends the process.
        unsafe { libc::pause() };
    }
    // SAFETY: the system passes valid information about this signal.
    let (address, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    let by_access = matches!(code, BEHIND_THE_END | FROM_THE_DISK);
    let mut buffer = [0; LINE];
    let Some(Mapping { path, offset }) = mapping_of(address, &mut buffer).filter(|_| by_access) else {
        // SAFETY: async-signal-safe. The access fails again when this function returns; a signal that was sent is sent again.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            if code <= 0 {
                libc::raise(signal);
            }
        }
        return;
    };
    let text = buffer.get(path.clone()).unwrap_or_default();
    let cut = size_of_file(text).is_some_and(|size| size <= offset);
    let text = text.strip_suffix(&[0]).unwrap_or(text);
    let (why, code): (&[u8], _) = match cut {
        true => (b" was cut short while it was in use; restore it from a copy or make it again, and start again\n", 3),
        false => (b" cannot be read or written (bus error); check its disk, and the free space there\n", 4),
    };
    let pieces: [&[u8]; 3] = [b"error: ", text, why];
    let pieces = pieces.map(|piece| libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() });
    // SAFETY: the pieces are valid for their lengths, and are only read.
    unsafe { libc::writev(libc::STDERR_FILENO, pieces.as_ptr(), pieces.len() as libc::c_int) };
    // SAFETY: async-signal-safe.
    unsafe { libc::_exit(code) };
}

/// A place in a mapped file.
#[derive(Debug, PartialEq)]
struct Mapping {
    /// Where the path is in the buffer, with a zero byte at its end.
    path: Range<usize>,
    /// From the start of the file.
    offset: u64,
}

/// Returns the mapped file that has `address`.
fn mapping_of(address: usize, buffer: &mut [u8; LINE]) -> Option<Mapping> {
    // SAFETY: the path is a C string.
    let file = unsafe { libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    let mut filled = 0;
    loop {
        let rest = buffer.get_mut(filled..)?;
        // SAFETY: `rest` is writable for its length. A file that is not open is an error.
        let read = unsafe { libc::read(file, rest.as_mut_ptr().cast(), rest.len()) };
        filled += usize::try_from(read).ok().filter(|&read| read > 0)?;
        let mut start = 0;
        while let Some(length) = buffer.get(start..filled)?.iter().position(|&byte| byte == b'\n') {
            let end = start + length;
            if let Some((path, offset)) = parse(buffer.get(start..end)?, address) {
                *buffer.get_mut(end)? = 0;
                return Some(Mapping { path: start + path..end + 1, offset });
            }
            start = end + 1;
        }
        buffer.copy_within(start..filled, 0);
        filled -= start;
    }
}

/// Returns where the path begins in a line of `/proc/self/maps`, and the place in the file, if the line is that of `address`.
fn parse(line: &[u8], address: usize) -> Option<(usize, u64)> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let mut ends = fields.next()?.split(|&byte| byte == b'-');
    let (start, end) = (hexadecimal(ends.next()?)?, hexadecimal(ends.next()?)?);
    let offset = hexadecimal(fields.nth(1)?)?;
    let path = fields.nth(2)?.trim_ascii_start();
    let address = address as u64;
    (path.first() == Some(&b'/') && (start..end).contains(&address))
        .then(|| (line.len() - path.len(), offset + (address - start)))
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    digits
        .iter()
        .try_fold(0u64, |number, &digit| Some(number.checked_mul(16)? + u64::from(char::from(digit).to_digit(16)?)))
}

/// Returns the size of the file with this path, which ends with a zero byte.
fn size_of_file(path: &[u8]) -> Option<u64> {
    let path = std::ffi::CStr::from_bytes_with_nul(path).ok()?;
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `path` is a C string and `stat` is writable; it is initialized if the result is 0.
    let size = unsafe { (libc::stat(path.as_ptr(), stat.as_mut_ptr()) == 0).then(|| stat.assume_init().st_size) };
    size.and_then(|size| u64::try_from(size).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_file_is_found_by_an_address() {
        let line = b"7f00a000-7f00c000 r--s 00003000 08:01 1234                       /data/a b.arrow";
        assert_eq!(parse(line, 0x7f00_a010), Some((line.len() - 15, 0x3010)));
        assert_eq!([parse(line, 0x7f00_9fff), parse(line, 0x7f00_c000)], [None, None]);
        for other in
            ["7f00a000-7f00c000 rw-p 00000000 00:00 0", "7f00a000-7f00c000 rw-p 00000000 00:00 0   [heap]", "x-y", ""]
        {
            assert_eq!(parse(other.as_bytes(), 0x7f00_a010), None, "{other}");
        }

        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(3 << 12).unwrap();
        let array = gnnflow_dataflow::storage::Array::<u8>::in_file(3 << 12, file.path()).unwrap();
        let mut buffer = [0; LINE];
        let found = mapping_of(array.as_ptr() as usize + 5000, &mut buffer).unwrap();
        let path = &buffer[found.path.clone()];
        assert_eq!((path.strip_suffix(&[0]), found.offset), (Some(file.path().as_os_str().as_encoded_bytes()), 5000));
        assert_eq!(size_of_file(path), Some(3 << 12));
        assert_eq!(mapping_of(1, &mut buffer), None);
    }
}
