//! Admission: what every request passes before its handler answers it, over HTTP and over gRPC.
//! [`Admission::pass`] has the order.
//!
//! A listener knows how its requests are recorded, refused and answered ([`ArrivedRequest`]), and not when.

use std::future::poll_fn;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use futures_util::FutureExt;

use super::gate::Gate;
use super::priority;
use crate::api::ServedApi;
use tensorserve_auth::{AuthError, AuthOutcome, Identity, Permission};
use tensorserve_core::metrics::Metrics;
use tensorserve_tensor::budget::{Budgeted, MemoryBudget, RequestBudget};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_trace::{Observer, RequestTrace, Traced};

/// A request whose head has arrived.
pub(super) trait ArrivedRequest {
    /// Its record, which lasts until the response is sent.
    type Record;
    /// The response.
    type Answer;

    /// Its record, if `observer` wants one.
    fn record(&mut self, observer: &Observer) -> Option<Self::Record>;

    /// What its steps write to.
    fn trace(record: &Self::Record) -> &Arc<RequestTrace>;

    /// When its client no longer waits, as far as the head says so.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Finds its handler, and returns what the request asks for.
    ///
    /// # Errors
    /// If it must not be answered, whoever sent it.
    fn ask(&mut self, gate: &Gate, trace: Option<&Arc<RequestTrace>>) -> Result<Asked<'_>>;

    /// The response to a request that is not admitted.
    fn refuse(&mut self, refusal: AdmissionRefusal) -> Self::Answer;

    /// Reads the body, and lets the handler answer.
    async fn handle(&mut self, admitted: Admitted<'_>) -> Self::Answer;
}

/// What a request asks for, and as whom.
pub(super) struct Asked<'r> {
    pub(super) permission: Permission,
    /// The `Authorization` header.
    pub(super) authorization: Option<&'r [u8]>,
    /// The client's address, if it is known.
    pub(super) address: Option<IpAddr>,
    /// The header [`priority::PRIORITY`].
    pub(super) priority: Option<&'r [u8]>,
}

/// Why a request is not admitted.
pub(super) enum AdmissionRefusal {
    /// The request must not be answered, whoever sent it.
    Request(Error),
    /// Its client is not known, or lacks the permission.
    Client(AuthError),
}

/// A request that is admitted.
pub(super) struct Admitted<'a> {
    /// The user or key that sent it.
    pub(super) client: Identity,
    /// Its memory, of which it holds none yet.
    pub(super) budget: RequestBudget,
    /// Its record, if it is recorded.
    pub(super) trace: Option<&'a Arc<RequestTrace>>,
}

/// `work` within a request's budget and for its record.
pub(super) fn run<F: Future + Unpin>(
    budget: &RequestBudget,
    trace: Option<&Arc<RequestTrace>>,
    work: F,
) -> Budgeted<Traced<F>> {
    Budgeted::new(budget.clone(), Traced::new(trace.cloned(), work))
}

/// Why a request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It caused a panic, which is counted.
    Panicked,
    /// Its deadline has passed.
    Late,
}

/// Admits requests. Cheap to clone.
#[derive(Clone)]
pub(super) struct Admission {
    gate: Gate,
    observer: Observer,
    metrics: Metrics,
    memory: MemoryBudget,
}

impl Admission {
    pub(super) fn new(gate: Gate, api: &ServedApi) -> Self {
        let (engine, observer) = (api.engine(), api.observer().clone());
        let (metrics, memory) = (engine.metrics().clone(), engine.request_memory().clone());
        Admission { gate, observer, metrics, memory }
    }

    pub(super) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Passes a request on to its handler, and returns its record and its answer. The order:
    ///
    /// 1. It is recorded, if the observer wants that.
    /// 2. It counts as in flight, until there is an answer.
    /// 3. Its client is authorized for what it asks for. Who is refused takes no memory of requests.
    /// 4. It has a budget of memory, which holds nothing before the body arrives, and in it
    /// 5. its priority.
    /// 6. Its handler answers.
    ///
    /// A panic in 3 to 6 ends this request only, and so does its deadline.
    pub(super) async fn pass<R: ArrivedRequest>(
        &self,
        request: &mut R,
    ) -> (Option<R::Record>, Result<R::Answer, Ended>) {
        let record = request.record(&self.observer);
        let answer = {
            let _in_flight = self.metrics.in_flight();
            let deadline = request.deadline();
            let trace = record.as_ref().map(R::trace);
            let mut answering = pin!(AssertUnwindSafe(self.admit(request, trace)).catch_unwind());
            let answered = poll_fn(|context| match answering.as_mut().poll(context) {
                Poll::Ready(answer) => Poll::Ready(answer.map_err(|_| Ended::Panicked)),
                // Whoever set the deadline wakes this future for it.
                Poll::Pending if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                    Poll::Ready(Err(Ended::Late))
                }
                Poll::Pending => Poll::Pending,
            });
            answered.await
        };
        if matches!(answer, Err(Ended::Panicked)) {
            self.metrics.panicked();
        }
        (record, answer)
    }

    /// The steps 3 to 6.
    async fn admit<R: ArrivedRequest>(
        &self,
        request: &mut R,
        trace: Option<&Arc<RequestTrace>>,
    ) -> R::Answer {
        let asked = match request.ask(&self.gate, trace) {
            Ok(asked) => asked,
            Err(error) => return request.refuse(AdmissionRefusal::Request(error)),
        };
        let Asked { permission, authorization, address, priority } = asked;
        let client = match self.gate.ask(permission, authorization, address) {
            AuthOutcome::Decided(client) => client,
            AuthOutcome::Pending(checking) => checking.result().await,
        };
        let client = match client {
            Ok(client) => client,
            Err(refusal) => {
                self.gate.count(refusal);
                return request.refuse(AdmissionRefusal::Client(refusal));
            }
        };
        let budget = self.memory.silent_request();
        priority::grant(&budget, &client, priority);
        request.handle(Admitted { client, budget, trace }).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::AdminAccess;
    use tensorserve_auth::{AuthConfig, Authenticator};
    use tensorserve_tensor::budget;
    use tensorserve_trace::Rate;

    /// What the handler of a request does.
    #[derive(Clone, Copy, PartialEq)]
    enum Work {
        Answer,
        Panic,
        Wait,
    }

    /// A request that notes what happens to it.
    struct Noted {
        steps: Vec<&'static str>,
        /// The `Authorization` header.
        authorization: Option<&'static [u8]>,
        /// It is refused, whoever sent it.
        is_bad: bool,
        work: Work,
        deadline: Option<Instant>,
        admission: Admission,
    }

    impl Noted {
        fn new(admission: &Admission) -> Self {
            let (steps, admission) = (Vec::new(), admission.clone());
            let (authorization, is_bad, work, deadline) = (None, false, Work::Answer, None);
            Noted { steps, authorization, is_bad, work, deadline, admission }
        }
    }

    impl ArrivedRequest for Noted {
        type Record = Arc<RequestTrace>;
        type Answer = &'static str;

        fn record(&mut self, observer: &Observer) -> Option<Arc<RequestTrace>> {
            assert_eq!(self.admission.metrics.in_flight_count(), 0);
            self.steps.push("record");
            observer.begin(Instant::now(), || None, || None)
        }

        fn trace(record: &Arc<RequestTrace>) -> &Arc<RequestTrace> {
            record
        }

        fn deadline(&self) -> Option<Instant> {
            self.deadline
        }

        fn ask(&mut self, _: &Gate, trace: Option<&Arc<RequestTrace>>) -> Result<Asked<'_>> {
            assert!(trace.is_some());
            assert_eq!(self.admission.metrics.in_flight_count(), 1);
            self.steps.push("ask");
            if self.is_bad {
                return Err(Error::invalid("bad"));
            }
            let (authorization, priority) = (self.authorization, Some(&b"low"[..]));
            let permission = Permission::Infer;
            Ok(Asked { permission, authorization, address: None, priority })
        }

        fn refuse(&mut self, refusal: AdmissionRefusal) -> &'static str {
            assert!(budget::current().is_none());
            self.steps.push("refuse");
            match refusal {
                AdmissionRefusal::Request(_) => "bad",
                AdmissionRefusal::Client(AuthError::Missing) => "unknown",
                AdmissionRefusal::Client(_) => "forbidden",
            }
        }

        async fn handle(&mut self, admitted: Admitted<'_>) -> &'static str {
            self.steps.push("handle");
            let Admitted { budget, trace, .. } = admitted;
            assert_eq!(budget.held(), 0);
            budget.reserve(1000).expect("memory");
            let work = self.work;
            let working = Box::pin(async move {
                assert!(tensorserve_trace::current().is_some());
                assert_eq!(budget::reserved(), 1000);
                let low = tensorserve_tensor::priority::Priority::Low;
                assert_eq!(budget::priority().priority(None), low);
                match work {
                    Work::Answer => "answer",
                    Work::Panic => panic!("as the test wants it"),
                    Work::Wait => std::future::pending().await,
                }
            });
            run(&budget, trace, working).await
        }
    }

    fn admission(authenticator: Option<&Authenticator>) -> Admission {
        let metrics = Metrics::default();
        let gate = Gate::new(authenticator, &AdminAccess::default(), &metrics);
        let observer = Observer::new(None, Some(Rate::ALL));
        Admission { gate, observer, metrics, memory: MemoryBudget::new(1 << 20) }
    }

    /// What happens to a request, and its answer.
    async fn pass(mut request: Noted) -> (String, Result<&'static str, Ended>) {
        let admission = request.admission.clone();
        let (record, answer) = admission.pass(&mut request).await;
        assert!(record.is_some());
        assert_eq!(admission.metrics.in_flight_count(), 0);
        assert_eq!(admission.memory.used(), 0);
        (request.steps.join(" "), answer)
    }

    #[tokio::test]
    async fn a_request_is_recorded_then_asks_and_is_then_handled() {
        let (steps, answer) = pass(Noted::new(&admission(None))).await;
        assert_eq!((steps.as_str(), answer), ("record ask handle", Ok("answer")));
    }

    #[tokio::test]
    async fn who_is_refused_takes_no_memory() {
        let config = AuthConfig::OneUser { name: "ana".to_owned(), password: "a".to_owned() };
        let admission = admission(Some(&Authenticator::new(&config).expect("an authenticator")));
        // Nothing is left: who asks for memory first is refused for that reason.
        let other = admission.memory.request().expect("memory");
        let rest = admission.memory.limit() - admission.memory.used();
        let _rest: Vec<_> = (0..rest / other.held()).map(|_| admission.memory.request()).collect();
        let used = admission.memory.used();
        for (authorization, is_bad, want) in [
            (None, false, "unknown"),
            (Some(&b"Bearer x"[..]), false, "forbidden"),
            (Some(&b"Basic YW5hOmI="[..]), false, "forbidden"),
            (None, true, "bad"),
        ] {
            let mut request = Noted { authorization, is_bad, ..Noted::new(&admission) };
            let (_, answer) = admission.pass(&mut request).await;
            assert_eq!(answer, Ok(want));
            assert_eq!(request.steps, ["record", "ask", "refuse"]);
            assert_eq!((admission.memory.used(), admission.memory.refused()), (used, 0));
            assert_eq!(admission.metrics.in_flight_count(), 0);
        }
        let refused = ["missing", "wrong"].map(|reason| admission.metrics.refusals(reason).get());
        assert_eq!(refused, [1, 2]);
    }

    #[tokio::test]
    async fn a_panic_and_a_deadline_end_one_request() {
        let admission = admission(None);
        let request = Noted { work: Work::Panic, ..Noted::new(&admission) };
        assert_eq!(pass(request).await.1, Err(Ended::Panicked));
        let deadline = Some(Instant::now() + Duration::from_millis(20));
        let request = Noted { work: Work::Wait, deadline, ..Noted::new(&admission) };
        // The timer, as calls have one.
        let passing = tokio::time::timeout(Duration::from_millis(50), pass(request));
        assert_eq!(passing.await.expect("ends").1, Err(Ended::Late));
        assert_eq!(pass(Noted::new(&admission)).await.1, Ok("answer"));
    }
}
