//! Mechanisms of futures.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        without: "permits that are used up",
        changes: &[(
            "aio/shared_sender.rs",
            "    pub fn with<R>(self, f: impl FnOnce(&mut LentSender<'_, B, T>) -> R) -> R {",
            "    pub fn with<R>(&self, _: impl FnOnce(&mut LentSender<'_, B, T>) -> R) -> R {
                unimplemented!()
            }
            fn with_by_value<R>(self, f: impl FnOnce(&mut LentSender<'_, B, T>) -> R) -> R {",
        )],
        cases: &["aio/a_permit_posts_once"],
    },
    Mutant {
        without: "a type of its own for a sender that is lent",
        changes: &[
            (
                "aio/shared_sender.rs",
                "    pub fn with<R>(&self, f: impl FnOnce(&mut LentSender<'_, B, T>) -> R) -> R {",
                "    pub fn with<R>(&self, _: impl FnOnce(&mut Sender<B, T>) -> R) -> R {
                    unimplemented!()
                }
                pub(super) fn with_lent<R>(&self, f: impl FnOnce(&mut LentSender<'_, B, T>) -> R) -> R {",
            ),
            ("aio/lend/granted.rs", "sender.with(|sender| post(", "sender.with_lent(|sender| post("),
        ],
        cases: &[
            "aio/a_lent_sender_does_not_wait",
            "aio/a_lent_sender_is_not_exchanged",
            "aio/a_lent_sender_is_not_exchanged_for_a_lent_one",
        ],
    },
    Mutant {
        without: "the lifetime of a permit",
        changes: &[(
            "aio/shared_sender.rs",
            "    pub async fn room(&self) -> Result<Permit<'_, B, T>, PollError> {",
            "    pub async fn room<'any>(&self) -> Result<Permit<'any, B, T>, PollError> where B: 'any, T: 'any {
                unimplemented!()
            }
            async fn room_of_this(&self) -> Result<Permit<'_, B, T>, PollError> {",
        )],
        cases: &["aio/a_permit_ends_before_its_sender"],
    },
    Mutant {
        without: "one holder of a sender",
        changes: &[(
            "aio/sender.rs",
            "static_assertions::assert_not_impl_any!(Sender<()>: Clone);",
            "impl<B, T> Clone for Sender<B, T> { fn clone(&self) -> Self { unimplemented!() } }",
        )],
        cases: &["aio/a_sender_is_not_cloned"],
    },
    Mutant {
        without: "connections that are used up",
        changes: &[(
            "aio/connection.rs",
            "    pub fn close(self) -> Closing<B, T> {",
            "    pub fn close(&self) -> Closing<B, T> {
                unimplemented!()
            }
            fn close_by_value(self) -> Closing<B, T> {",
        )],
        cases: &["aio/a_connection_that_is_closed_is_not_used"],
    },
    Mutant {
        without: "one holder of a grant",
        changes: &[
            (
                "aio/lend/granted.rs",
                "static_assertions::assert_not_impl_any!(Granted<(), ()>: Clone);",
                "impl<B, A> Clone for Granted<B, A> { fn clone(&self) -> Self { unimplemented!() } }",
            ),
            (
                "aio/lend/granted.rs",
                "    pub fn give_back(self) -> Returning {",
                "    pub fn give_back(&self) -> Returning {
                    unimplemented!()
                }
                fn give_back_by_value(self) -> Returning {",
            ),
        ],
        cases: &[
            "aio/a_grant_is_not_cloned",
            "aio/a_grant_that_was_returned_is_gone",
            "aio/a_part_ends_before_its_grant_is_returned",
        ],
    },
    Mutant {
        without: "the brand of a sender",
        changes: &[("aio/connection.rs", "self.sender.send(memory)", "self.sender.send_of_domain(memory)"), (
            "aio/sender.rs",
            "    pub fn send<R: SendMemory<B> + Returned<B>>(&mut self, memory: R) -> Result<Posted<B, R::Back>, PostError<R>>
    where
        T: Carries<request_kinds::Send>,
    {",
            "    pub fn send<C>(&mut self, _: Buffer<C>) -> Result<Posted<B, Buffer<B>>, PostError<Buffer<C>>> {
                unimplemented!()
            }
            pub(super) fn send_of_domain<R: SendMemory<B> + Returned<B>>(
                &mut self,
                memory: R,
            ) -> Result<Posted<B, R::Back>, PostError<R>>
    where
        T: Carries<request_kinds::Send>,
    {",
        )],
        cases: &["aio/a_task_sends_no_buffer_of_another_domain"],
    },
];
