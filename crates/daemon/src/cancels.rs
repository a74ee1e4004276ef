//! Requests to cancel kernels that workers have not answered yet.

use crate::open_requests::OpenRequests;

/// The requests that are open; an answer is the number of kernels and of copies that were ended.
pub(crate) type Cancels = OpenRequests<(), (u64, u64)>;

impl Cancels {
    /// Takes a client's answer; an answer that nobody waits for is dropped.
    pub(crate) fn answered(&self, client: u64, request: u64, ended: (u64, u64)) {
        self.end(client, request, |()| ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_reaches_the_request_it_belongs_to_and_no_other() {
        let cancels = Cancels::default();
        let (first, mut one) = cancels.expect(1);
        let (second, mut two) = cancels.expect(2);
        cancels.answered(2, first, (9, 9));
        cancels.answered(2, second, (3, 0));
        assert!(one.try_recv().is_err(), "another client cannot answer");
        assert_eq!(two.try_recv(), Ok((3, 0)));
        cancels.client_gone(1);
        use tokio::sync::oneshot::error::TryRecvError;
        assert_eq!(one.try_recv(), Err(TryRecvError::Closed));
    }
}
