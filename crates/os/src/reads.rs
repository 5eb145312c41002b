//! A `pread` that interposes the C library's, for the whole process and every library that is
//! opened later, and splits long reads into short system calls. An FFI file, as it implements a C
//! function.
//!
//! libtensorflow reads a variable with one call, 100 MB in some 100 ms. A kernel that is built for
//! throughput (`PREEMPT_NONE`, as on many servers) may not switch to another thread on that core
//! until the call returns, however low the reader's priority: requests for other models would wait.
//! Between two short calls they can run.
#![allow(unsafe_code)]

use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};

/// The most bytes of one system call: about 70 µs, page faults included.
const CHUNK: usize = 256 << 10;
/// The most bytes that Linux transfers in one call (`read(2)`).
const MAX_READ: usize = 0x7fff_f000;

/// Whether libraries in this process resolve `pread` to [`pread`]. It is not so only in a program
/// that was linked without dynamic symbols of its own.
pub(crate) fn is_interposed() -> bool {
    let ours: unsafe extern "C" fn(c_int, *mut c_void, size_t, off_t) -> ssize_t = pread;
    [c"pread", c"pread64"].into_iter().zip([ours, pread64]).all(|(name, ours)| {
        // SAFETY: looks a name up, with a terminated string.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        found == ours as *mut c_void
    })
}

/// `pread(2)` with the same results and errors, in chunks.
///
/// # Safety
/// As for the C library's: `buffer` has room for `count` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn pread(
    file: c_int,
    buffer: *mut c_void,
    count: size_t,
    offset: off_t,
) -> ssize_t {
    let count = count.min(MAX_READ);
    let mut done = 0;
    loop {
        let length = (count - done).min(CHUNK);
        let start = buffer.cast::<u8>().wrapping_add(done).cast();
        let chunk = iovec { iov_base: start, iov_len: length };
        // SAFETY: `done + length <= count`, and the caller guarantees room for `count` bytes.
        let read =
            unsafe { libc::preadv(file, &raw const chunk, 1, offset.wrapping_add(done as off_t)) };
        let Ok(read) = usize::try_from(read) else {
            // As in a single call: bytes that were read before a failure are reported first.
            return if done == 0 { -1 } else { done as ssize_t };
        };
        done += read;
        if read < length || done == count {
            return done as ssize_t;
        }
    }
}

/// [`pread`] under its large-file name, which programs use where offsets once had 32 bits.
///
/// # Safety
/// As for [`pread`].
#[unsafe(no_mangle)]
unsafe extern "C" fn pread64(
    file: c_int,
    buffer: *mut c_void,
    count: size_t,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the caller upholds the contract of `pread`.
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
        assert!(is_interposed());
    }

    #[test]
    fn it_reads_what_the_kernel_reads() {
        let written: Vec<u8> = (0..CHUNK * 3 + 17).map(|i| (i / 3) as u8).collect();
        let mut file = tempfile::tempfile().expect("file");
        file.write_all(&written).expect("written");
        let counts =
            [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK * 2, written.len(), written.len() * 2];
        for offset in [0, 1, CHUNK, CHUNK * 3, written.len() - 1, written.len(), written.len() + 5]
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
        let folder = tempfile::tempdir().expect("directory");
        let mut bytes = vec![0; CHUNK * 2];
        let not_a_file = File::open(folder.path()).expect("opened").read_at(&mut bytes, 0);
        assert_eq!(not_a_file.expect_err("a directory").kind(), ErrorKind::IsADirectory);
        let file = tempfile::tempfile().expect("file");
        // SAFETY: the vector has room for `bytes.len()` bytes.
        let read = unsafe { pread(file.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), -1) };
        assert_eq!(
            (read, std::io::Error::last_os_error().raw_os_error()),
            (-1, Some(libc::EINVAL))
        );
    }
}
