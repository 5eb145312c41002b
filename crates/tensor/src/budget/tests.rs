//! Tests of budgets.

use super::*;

#[test]
fn a_request_of_which_nothing_has_arrived_holds_nothing() {
    let server = MemoryBudget::new(1 << 20);
    let silent: Vec<_> = (0..1000).map(|_| server.silent_request()).collect();
    assert_eq!(server.used(), 0);
    let request = server.request().expect("all memory is free");
    silent[0].reserve(1).expect("it begins");
    silent[1].begin().expect("it begins");
    silent[1].begin().expect("it has begun");
    assert_eq!(server.used(), 3 * INITIAL);
    drop((silent, request));
    assert_eq!(server.used(), 0);
}

#[test]
fn memory_returns_when_the_request_ends() {
    let server = MemoryBudget::new(8 << 20);
    let request = server.request().expect("empty");
    assert_eq!(server.used(), INITIAL);
    request.reserve(INITIAL).expect("held already");
    assert_eq!(server.used(), INITIAL);
    request.reserve(3 << 20).expect("fits");
    let clone = request.clone();
    drop(request);
    assert!(server.used() > 3 << 20);
    drop(clone);
    assert_eq!(server.used(), 0);
}

#[test]
fn what_threads_keep_is_free_for_all() {
    let server = MemoryBudget::new(1 << 20);
    let requests = || -> Vec<_> { (0..20).map(|_| server.request().expect("fits")).collect() };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| drop((requests(), requests())));
        other.join().expect("no panic");
        drop(requests());
        assert_eq!(server.used(), 0);
        let large = server.request().expect("fits");
        large.reserve((1 << 20) - (1 << 17)).expect("all that one request can have");
        let small: Vec<_> = std::iter::from_fn(|| server.request().ok()).collect();
        assert_eq!(server.used(), 1 << 20);
        assert_eq!(small.len(), (1 << 17) / INITIAL);
        drop((small, large));
        assert_eq!(server.used(), 0);
    });
}

#[test]
fn what_a_probe_took_beyond_the_limit_is_not_kept() {
    let server = MemoryBudget::new(2 * INITIAL);
    let all = (server.request().expect("fits"), server.request().expect("fits"));
    for _ in 0..3 {
        server.silent_request().begin_for(true).expect("it is a probe");
        assert!(server.request().is_err());
    }
    drop(all);
    assert_eq!(server.used(), 0);
}

#[test]
fn what_does_not_fit_now_and_what_never_fits_are_told_apart() {
    let server = MemoryBudget::new(8 << 20);
    let (first, second) = (server.request().expect("one"), server.request().expect("two"));
    first.reserve(5 << 20).expect("fits");
    let busy = second.reserve(5 << 20).expect_err("others hold it");
    assert_eq!((busy.code(), busy.http_status()), (Code::ResourceExhausted, 503));
    let never = second.reserve(8 << 20).expect_err("never");
    assert_eq!((never.code(), never.http_status()), (Code::ResourceExhausted, 413));
    assert_eq!(second.reserve(usize::MAX).expect_err("never").http_status(), 413);
    assert_eq!(server.refused(), 3);
    drop(first);
    second.reserve(5 << 20).expect("fits now");
}

#[test]
fn what_is_announced_is_not_taken() {
    let server = MemoryBudget::new(8 << 20);
    let (first, second) = (server.request().expect("one"), server.request().expect("two"));
    first.would_fit(6 << 20).expect("fits");
    assert_eq!(server.used(), 2 * INITIAL);
    second.reserve(5 << 20).expect("fits");
    assert!(first.would_fit(6 << 20).expect_err("others hold it").is_overload());
    first.would_fit(1 << 20).expect("fits");
    drop(second);
    first.would_fit(usize::MAX).expect("as much as one request can have");
}

#[test]
fn probes_are_answered_when_all_memory_is_in_use() {
    let server = MemoryBudget::new(INITIAL);
    let _request = server.request().expect("one");
    assert!(server.request().expect_err("full").is_overload());
    assert!(server.silent_request().begin_for(false).expect_err("full").is_overload());
    server.silent_request().begin_for(true).expect("a probe");
    assert_eq!(server.used(), INITIAL);
}

#[test]
fn large_requests_leave_room_for_small_ones() {
    let server = MemoryBudget::new(16 << 20);
    let large = server.request().expect("one");
    large.reserve(13 << 20).expect("fits");
    let other = server.request().expect("small at first");
    assert!(other.reserve(2 << 20).is_err());
    other.reserve(512 << 10).expect("small");
}

#[test]
fn an_expectation_is_reserved_later_without_asking_again() {
    let server = MemoryBudget::new(8 << 20);
    let request = server.request().expect("one");
    request.expect(3 << 20).expect("fits");
    let used = server.used();
    request.reserve(2 << 20).expect("expected");
    assert_eq!(server.used(), used);
    request.expect(usize::MAX).expect("as much as there is");
}

#[test]
fn work_is_bound_by_the_budget_of_its_request() {
    assert!(reserve(usize::MAX).is_ok(), "no request, no limit");
    let server = MemoryBudget::new(8 << 20);
    let request = server.request().expect("one");
    request.enter(|| {
        assert!(reserved_vec::<u64>(1 << 40).is_err());
        assert!(check().is_ok());
        let mut out = Vec::<u8>::new();
        grow(&mut out, 1000).expect("fits");
        assert!(out.capacity() >= 1000);
        assert!(grow(&mut out, 1 << 30).is_err());
        request.set_deadline(Instant::now());
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert_eq!(check().expect_err("late").code(), Code::DeadlineExceeded);
    });
    assert!(current().is_none());
}

#[test]
fn scratch_memory_can_be_reserved_again() {
    let server = MemoryBudget::new(8 << 20);
    let request = server.request().expect("one");
    request.enter(|| {
        for _ in 0..10 {
            drop(scratch(5 << 20).expect("fits"));
        }
        let _scratch = scratch(5 << 20).expect("fits");
        assert!(scratch(5 << 20).is_err());
    });
}

#[test]
fn a_meter_reserves_what_it_counts() {
    let server = MemoryBudget::new(8 << 20);
    let request = server.request().expect("one");
    let mut meter = Meter::default();
    let all = || (0..1 << 20).try_for_each(|_| meter.add(16));
    assert_eq!(request.enter(all).expect_err("16 MiB").http_status(), 413);
}

#[test]
fn a_meter_counts_lists_before_they_grow() {
    let server = MemoryBudget::new(8 << 20);
    let request = server.request().expect("one");
    let (mut meter, mut list) = (Meter::default(), Vec::new());
    let all = || (0..1_u64 << 30).try_for_each(|number| meter.push(&mut list, number));
    assert_eq!(request.enter(all).expect_err("8 GiB").http_status(), 413);
    assert!(list.capacity() * size_of::<u64>() <= 8 << 20);
}

#[test]
fn a_dropped_future_abandons_its_request() {
    let server = MemoryBudget::new(8 << 20);
    let request = server.request().expect("one");
    drop(Budgeted::new(request.clone(), std::future::pending::<()>()));
    assert_eq!(request.check().expect_err("left").code(), Code::Cancelled);
    let request = server.request().expect("one");
    let mut done = Budgeted::new(request.clone(), std::future::ready(()));
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(Pin::new(&mut done).poll(&mut context).is_ready());
    drop(done);
    assert!(request.check().is_ok());
}
