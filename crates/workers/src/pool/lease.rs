//! The exclusive use of a connection of a worker for one call.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::{CallError, HandlerError, WorkerCall, WorkerPool};
use crate::connection::{ExchangeError, WatchedConnection, WorkerConnection};
use crate::process::Worker;
use crate::wire::WireFrame;
use tensorserve_tensor::error::Error;

/// A connection of a worker, which is `None` while it is not open.
pub(super) struct LeasedConnection {
    pub(super) worker: Arc<Worker>,
    pub(super) connection: Option<WorkerConnection>,
}

/// The exclusive use of a connection, until this is dropped.
pub(super) struct ConnectionLease {
    pool: Arc<WorkerPool>,
    pub(super) leased: Option<LeasedConnection>,
    /// When the call in progress, whose reply has not been received, times out.
    ends: Option<Instant>,
}

impl ConnectionLease {
    pub(super) fn new(pool: &Arc<WorkerPool>, leased: LeasedConnection) -> Self {
        ConnectionLease { pool: Arc::clone(pool), leased: Some(leased), ends: None }
    }

    pub(super) fn worker(&self) -> Result<Arc<Worker>, HandlerError> {
        let missing = || HandlerError::of(Error::internal("a lease without a connection"));
        self.leased.as_ref().map(|leased| Arc::clone(&leased.worker)).ok_or_else(missing)
    }

    pub(super) async fn exchange(
        &mut self,
        call: &WorkerCall<'_>,
        deadline: Instant,
    ) -> Result<WireFrame, CallError> {
        let Some(leased) = &mut self.leased else {
            return Err(CallError::NotSent);
        };
        let ends = Instant::now() + self.pool.limits.timeout;
        let received = match leased.watched() {
            Ok(watched) => {
                // From the first byte until it has replied, the connection can take no other call.
                self.ends = Some(ends);
                let exchange = async {
                    watched.send(call.function, call.fields, call.body).await?;
                    watched.receive().await
                };
                tokio::time::timeout_at(ends.min(deadline).into(), exchange).await.ok()
            }
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                Some(Err(ExchangeError::NotSent))
            }
            Err(error) => return Err(CallError::NoConnection(error)),
        };
        self.end_exchange(received, ends, deadline)
    }

    /// Sends a call and waits for its reply on this thread, which it blocks.
    pub(super) fn exchange_blocking(
        &mut self,
        call: &WorkerCall<'_>,
        deadline: Instant,
    ) -> Result<WireFrame, CallError> {
        let Some(leased) = &mut self.leased else {
            return Err(CallError::NotSent);
        };
        let ends = Instant::now() + self.pool.limits.timeout;
        let received = match leased.connection() {
            Ok(connection) => {
                self.ends = Some(ends);
                connection.exchange(call.function, call.fields, call.body, ends.min(deadline))
            }
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                Some(Err(ExchangeError::NotSent))
            }
            Err(error) => return Err(CallError::NoConnection(error)),
        };
        self.end_exchange(received, ends, deadline)
    }

    /// The reply; `received` is `None` if there was none in time.
    fn end_exchange(
        &mut self,
        received: Option<Result<WireFrame, ExchangeError>>,
        ends: Instant,
        deadline: Instant,
    ) -> Result<WireFrame, CallError> {
        match received {
            Some(Ok(frame)) => {
                self.ends = None;
                Ok(frame)
            }
            // The thread goes on until the call's own deadline.
            None if deadline < ends => Err(CallError::DeadlineExceeded),
            Some(Err(error)) => match self.leased.take() {
                Some(leased) => Err(self.pool.fail(leased, error)),
                None => Err(CallError::Ended),
            },
            None => match self.leased.take() {
                Some(leased) if !self.pool.time_out(&leased.worker) => Err(CallError::TimedOut),
                _ => Err(CallError::Ended),
            },
        }
    }
}

impl LeasedConnection {
    /// The connection, opened if it is not.
    fn connection(&mut self) -> io::Result<&WorkerConnection> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.worker.open_connection()?,
        };
        Ok(self.connection.insert(connection))
    }

    /// The connection for one call, watched by the runtime of this thread.
    fn watched(&mut self) -> io::Result<WatchedConnection<'_>> {
        self.connection()?.watched()
    }
}

impl Drop for ConnectionLease {
    fn drop(&mut self) {
        let Some(mut leased) = self.leased.take() else {
            return;
        };
        let pool = Arc::clone(&self.pool);
        let Some(ends) = self.ends else {
            pool.release(leased);
            return;
        };
        // The caller has gone, but the connection is free only after the reply, which is discarded.
        let receive = async move {
            let received = match leased.watched() {
                Ok(watched) => tokio::time::timeout_at(ends.into(), watched.receive()).await,
                Err(_) => Ok(Err(ExchangeError::Closed)),
            };
            match received {
                Ok(Ok(_)) => pool.release(leased),
                Ok(Err(error)) => drop(pool.fail(leased, error)),
                Err(_) => drop(pool.time_out(&leased.worker)),
            }
        };
        self.pool.keepers.spawn(receive);
    }
}
