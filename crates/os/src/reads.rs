//! Reads of files, in pieces: the C library's `pread`, as all of this process has it, libraries that
//! are opened later included. An FFI file, as it stands in for a C function.
//!
//! libtensorflow reads a variable with one call, 100 MB in some 100 ms. A kernel that is built for
//! throughput (`PREEMPT_NONE`, as many servers') may let no other thread have the core before such a
//! call ends, however low the priority of the one that reads: requests for other models would wait.
//! Between two pieces they go first.
#![allow(unsafe_code)]

use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};

/// Bytes that one system call reads at most: some 70 us, page faults and all.
const PIECE: usize = 256 << 10;
/// Bytes that Linux reads in one call at most.
const MOST: usize = 0x7fff_f000;

/// Whether [`pread`] is what libraries of this process get: only a program that was linked
/// unusually (without dynamic symbols of its own) keeps it to itself.
pub(crate) fn are_in_pieces() -> bool {
    let ours: unsafe extern "C" fn(c_int, *mut c_void, size_t, off_t) -> ssize_t = pread;
    [c"pread", c"pread64"].into_iter().zip([ours, pread64]).all(|(name, ours)| {
        // SAFETY: looks a name up, with a terminated string.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        found == ours as *mut c_void
    })
}

/// `pread(2)`: the same bytes, the same errors, in pieces.
///
/// # Safety
/// As the C library's: `buffer` has room for `count` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn pread(
    file: c_int,
    buffer: *mut c_void,
    count: size_t,
    offset: off_t,
) -> ssize_t {
    let count = count.min(MOST);
    let mut done = 0;
    loop {
        let wanted = (count - done).min(PIECE);
        let start = buffer.cast::<u8>().wrapping_add(done).cast();
        let piece = iovec { iov_base: start, iov_len: wanted };
        // SAFETY: `done + wanted <= count`, for which the caller says that there is room.
        let read =
            unsafe { libc::preadv(file, &raw const piece, 1, offset.wrapping_add(done as off_t)) };
        let Ok(read) = usize::try_from(read) else {
            // As in one call: what was read before a failure is told first.
            return if done == 0 { -1 } else { done as ssize_t };
        };
        done += read;
        if read < wanted || done == count {
            return done as ssize_t;
        }
    }
}

/// The same under the name it has where offsets once had 32 bits.
///
/// # Safety
/// As [`pread`].
#[unsafe(no_mangle)]
unsafe extern "C" fn pread64(
    file: c_int,
    buffer: *mut c_void,
    count: size_t,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the caller keeps the promise.
    unsafe { pread(file, buffer, count, offset) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{ErrorKind, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn libraries_get_it() {
        assert!(are_in_pieces());
    }

    #[test]
    fn it_reads_what_the_kernel_reads() {
        let written: Vec<u8> = (0..PIECE * 3 + 17).map(|i| (i / 3) as u8).collect();
        let mut file = tempfile::tempfile().expect("file");
        file.write_all(&written).expect("written");
        let counts =
            [0, 1, PIECE - 1, PIECE, PIECE + 1, PIECE * 2, written.len(), written.len() * 2];
        for offset in [0, 1, PIECE, PIECE * 3, written.len() - 1, written.len(), written.len() + 5]
        {
            for count in counts {
                let mut bytes = vec![0; count];
                let read = file.read_at(&mut bytes, offset as u64).expect("read");
                let there = &written[offset.min(written.len())..];
                assert_eq!(read, there.len().min(count), "{count} from {offset}");
                assert_eq!(bytes[..read], there[..read], "{count} from {offset}");
            }
        }
    }

    #[test]
    fn it_fails_where_the_kernel_fails() {
        let folder = tempfile::tempdir().expect("folder");
        let mut bytes = vec![0; PIECE * 2];
        let not_a_file = File::open(folder.path()).expect("opened").read_at(&mut bytes, 0);
        assert_eq!(not_a_file.expect_err("a folder").kind(), ErrorKind::IsADirectory);
        let file = tempfile::tempfile().expect("file");
        // SAFETY: there is room for so many bytes.
        let read = unsafe { pread(file.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), -1) };
        assert_eq!(
            (read, std::io::Error::last_os_error().raw_os_error()),
            (-1, Some(libc::EINVAL))
        );
    }
}
