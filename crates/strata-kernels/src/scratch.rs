//! Room that a thread's kernels work in: taken for a task, kept by the thread, so that a layer allocates nothing.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use crate::experts::Room;
use crate::inputs::InputBuffer;
use crate::matmul::Panel;

/// What kernels keep between tasks. It only grows.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) panel: Panel,
    /// Of an expert that one thread computes.
    pub(crate) expert: Room,
    /// Of a group whose panels all threads share.
    pub(crate) group: Room,
    /// Of one product.
    pub(crate) inputs: InputBuffer,
}

thread_local! {
    static KEPT: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// The thread's scratch; a job inside of a job gets another one.
pub(crate) struct Taken(Option<Box<Scratch>>);

impl Scratch {
    pub(crate) fn of_thread() -> Taken {
        Taken(Some(KEPT.take().unwrap_or_default()))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        KEPT.set(self.0.take());
    }
}

impl Deref for Taken {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        self.0.as_ref().expect("held until it is dropped")
    }
}

impl DerefMut for Taken {
    fn deref_mut(&mut self) -> &mut Scratch {
        self.0.as_mut().expect("held until it is dropped")
    }
}
