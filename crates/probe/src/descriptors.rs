//! Datagrams that carry open files (`SCM_RIGHTS`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The most files of one datagram.
pub(crate) const MOST_FILES: usize = 128;

/// Sends a datagram with these files, at most [`MOST_FILES`].
///
/// # Errors
/// Those of the operating system.
pub(crate) fn send(
    socket: &UnixDatagram,
    message: &[u8],
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::Error::other(format!("more than {MOST_FILES} files")));
    }
    sendmsg(socket, &[IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Waits for a datagram. Returns its length and its files.
///
/// # Errors
/// Those of the operating system.
pub(crate) fn receive(
    socket: &UnixDatagram,
    message: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let slices = &mut [IoSliceMut::new(message)];
    let received = recvmsg(socket, slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = part {
            files.extend(passed);
        }
    }
    Ok((received.bytes, files))
}
