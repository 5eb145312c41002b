//! Tests of bodies.

use super::*;

#[test]
fn tensors_in_a_body_are_aligned() {
    for tensors_at in [0, 1, 63, 64, 170, 8191, usize::MAX] {
        let mut body = buffer(8192, tensors_at).expect("memory");
        assert!(body.is_empty() && body.capacity() >= 8192, "{tensors_at}");
        body.extend_from_slice(&[1; 8192]);
        let body = body.freeze();
        assert_eq!(body.len(), 8192);
        if let Some(tensors) = body.get(tensors_at..).filter(|_| tensors_at > 0) {
            assert!(tensors.as_ptr().addr().is_multiple_of(ALIGNMENT), "{tensors_at}");
        }
    }
}
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use std::io::Write;
use tensorserve_tensor::budget::MemoryBudget;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).expect("written");
    encoder.finish().expect("finished")
}

fn request(bytes: usize) -> RequestBudget {
    MemoryBudget::new(bytes).request().expect("memory")
}

fn inflate(body: &[u8], limit: usize, budget: &RequestBudget) -> Result<Bytes, BodyError> {
    let body = Bytes::copy_from_slice(body);
    let mut inflation = Inflation::new(body, BodyCompression::Gzip, limit);
    budget.enter(|| inflation.run(usize::MAX))?;
    Ok(inflation.inflated.into())
}

#[test]
fn a_bomb_is_not_decompressed_in_place() {
    let bomb = gzip(&vec![0; 10 << 20]);
    let mut inflation = Inflation::new(bomb.into(), BodyCompression::Gzip, 64 << 20);
    assert!(!inflation.run(INFLATE_IN_PLACE).expect("sound"));
    assert!(inflation.inflated.len() < 2 * INFLATE_IN_PLACE);
    assert!(inflation.run(usize::MAX).expect("sound"));
    assert_eq!(inflation.inflated.len(), 10 << 20);
}

#[test]
fn a_bomb_stops_at_the_limit() {
    let bomb = gzip(&vec![0; 10 << 20]);
    assert!(bomb.len() < 20_000);
    let error = inflate(&bomb, 1 << 20, &request(64 << 20)).expect_err("too large");
    assert_eq!(error.status, 413);
    let inflated = inflate(&gzip(b"hello"), 5, &request(64 << 20)).expect("fits exactly");
    assert_eq!(&inflated[..], b"hello");
}

#[test]
fn a_bomb_stops_at_the_memory_of_the_server() {
    let bomb = gzip(&vec![0; 10 << 20]);
    let error = inflate(&bomb, 64 << 20, &request(1 << 20)).expect_err("too large");
    assert_eq!(error.status, 413);
}

#[tokio::test]
async fn other_connections_have_their_turn_while_a_body_grows() {
    let mut body = BytesMut::zeroed(32 * TURN);
    let turns = std::cell::Cell::new(0);
    let others = async {
        loop {
            turns.set(turns.get() + 1);
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = others => {}
        grown = grow(&mut body, 1, 0) => grown.expect("memory"),
    }
    assert_eq!(body.len(), 32 * TURN);
    assert!(body.capacity() > body.len());
    assert!(turns.get() >= 32, "{} turns", turns.get());
}

#[test]
fn a_body_grows_to_its_declared_length_and_not_beyond() {
    let body = BytesMut::zeroed(40 << 20);
    assert_eq!(growth(&body, 1 << 10, 60 << 20), 20 << 20);
    assert_eq!(growth(&body, 1 << 10, 200 << 20), 40 << 20);
    // In chunks, or longer than declared.
    assert_eq!(growth(&body, 1 << 10, 0), 40 << 20);
    assert_eq!(growth(&body, 50 << 20, 0), 50 << 20);
}

#[test]
fn a_buffer_for_which_there_is_no_memory_is_an_error() {
    for tensors_at in [0, 64] {
        let error = buffer(1 << 60, tensors_at).expect_err("no such memory");
        assert!(error.is_overload(), "{error}");
    }
}

#[test]
fn damaged_gzip_is_an_error() {
    let mut damaged = gzip(b"hello hello hello");
    damaged.truncate(15);
    let budget = request(1 << 20);
    assert_eq!(inflate(&damaged, 100, &budget).expect_err("cut").status, 400);
    assert_eq!(inflate(b"plain", 100, &budget).expect_err("no gzip").status, 400);
}

#[test]
fn deflate_is_inflated_within_the_same_limits() {
    let deflated = |bytes: &[u8]| -> Bytes {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).expect("written");
        encoder.finish().expect("finished").into()
    };
    let inflate = |body: Bytes, limit| {
        let mut inflation = Inflation::new(body, BodyCompression::Deflate, limit);
        inflation.run(usize::MAX).map(|_| inflation.inflated)
    };
    assert_eq!(inflate(deflated(b"hello"), 5).expect("fits exactly"), b"hello");
    assert_eq!(inflate(deflated(&vec![0; 10 << 20]), 1 << 20).expect_err("large").status, 413);
    assert_eq!(inflate(gzip(b"hello").into(), 5).expect_err("another format").status, 400);
    assert_eq!(inflate(deflated(b"hello").slice(..6), 5).expect_err("cut").status, 400);
}
