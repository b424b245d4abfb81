//! Reads by Linux `io_uring`.
//!
//! Promises: nothing spins, and no thread is started here; every read that was taken is reported once, in whatever order
//! reads end; starting reads does not wait for the drive.
//!
//! A drive takes so many requests at a time, and the system lets whoever submits one more wait for a free place: for tens of
//! milliseconds, in which the thread that submits could have computed. Beyond half of those places (others read, too),
//! threads of the kernel submit. A few are enough, and more than that only cost time.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::types::{CancelBuilder, Fixed, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, opcode, squeue};

use super::files::{DriveQueue, OpenFile, describe};
use super::port::{Ended, Port, PortRead};
use crate::Area;

/// The most bytes that one registered buffer has.
const MAX_PIECE_BYTES: usize = 1 << 30;
/// The most bytes that the system reads at once; whole pages.
const MAX_READ_BYTES: usize = 0x7fff_f000;

/// Threads of the kernel that submit reads for which the drive has no place yet.
const SUBMITTERS: u32 = 4;

/// A port of one ring, which has an entry for each read: what is started always has room.
pub(super) struct Uring {
    ring: IoUring,
    /// Registered, by index; open for as long as reads use them.
    files: Vec<OpenFile>,
    memory: Registered,
    /// What the drive of each file takes.
    queues: Vec<DriveQueue>,
    /// Requests of each read, by id, and of all that are under way.
    requests: Vec<usize>,
    all_requests: usize,
    /// Reads that were taken and have not been reported.
    under_way: usize,
    depth: usize,
}

/// Memory that the kernel knows and need not look up for every read.
struct Registered {
    /// First address and bytes of each buffer, by address.
    pieces: Vec<(usize, usize)>,
    /// Kept for as long as the kernel may write there.
    areas: Vec<Arc<Area>>,
    refusal: Option<io::Error>,
}

impl Uring {
    pub(super) fn open(files: Vec<OpenFile>, areas: &[Arc<Area>], depth: usize) -> io::Result<Self> {
        let ring = IoUring::new(depth as u32)?;
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        ring.submitter().register_files(&files.iter().map(|file| file.file.as_raw_fd()).collect::<Vec<_>>())?;
        if files.iter().all(|file| file.is_direct) {
            // Buffered reads are carried out by these threads; there, the system knows how many it wants. Old kernels do not
            // know this: they start more.
            let _ = ring.submitter().register_iowq_max_workers(&mut [SUBMITTERS; 2]);
        }
        let memory = Registered::new(&ring, areas);
        let queues = files.iter().map(|file| DriveQueue::of(&file.file)).collect();
        Ok(Self { ring, files, memory, queues, requests: vec![0; depth], all_requests: 0, under_way: 0, depth })
    }

    /// Takes from the ring what has ended.
    fn collect(&mut self, ended: &mut Vec<Ended>) -> usize {
        let before = ended.len();
        for entry in self.ring.completion() {
            let result = usize::try_from(entry.result()).map_err(|_| io::Error::from_raw_os_error(-entry.result()));
            let id = entry.user_data() as u32;
            self.all_requests -= self.requests[id as usize];
            ended.push(Ended { id, result });
        }
        let count = ended.len() - before;
        self.under_way -= count;
        count
    }
}

impl Registered {
    /// Registers `areas`, or says why the system refuses: most often, because a user may not lock so much memory.
    fn new(ring: &IoUring, areas: &[Arc<Area>]) -> Self {
        let mut buffers: Vec<libc::iovec> = Vec::new();
        for area in areas {
            for at in (0..area.len_bytes()).step_by(MAX_PIECE_BYTES) {
                let iov_base = area.start().wrapping_add(at).cast();
                buffers.push(libc::iovec { iov_base, iov_len: MAX_PIECE_BYTES.min(area.len_bytes() - at) });
            }
        }
        buffers.sort_unstable_by_key(|buffer| buffer.iov_base.addr());
        let pieces = buffers.iter().map(|buffer| (buffer.iov_base.addr(), buffer.iov_len)).collect();
        if buffers.is_empty() {
            return Self { pieces, areas: Vec::new(), refusal: None };
        }
        // SAFETY: the areas are kept until after the ring is gone; that their bytes are written to, whoever starts a read
        // allows for each of them.
        match unsafe { ring.submitter().register_buffers(&buffers) } {
            Ok(()) => Self { pieces, areas: areas.to_vec(), refusal: None },
            Err(refusal) => Self { pieces: Vec::new(), areas: Vec::new(), refusal: Some(refusal) },
        }
    }

    /// The buffer that all of this memory is in.
    fn index(&self, start: usize, len_bytes: usize) -> Option<u16> {
        let index = self.pieces.partition_point(|piece| piece.0 <= start).checked_sub(1)?;
        let piece = self.pieces[index];
        (start + len_bytes <= piece.0 + piece.1).then(|| u16::try_from(index).ok())?
    }
}

impl Port for Uring {
    fn describe(&self) -> String {
        let memory = match &self.memory {
            Registered { refusal: Some(refusal), .. } => format!(", memory not registered ({refusal})"),
            Registered { areas, .. } if areas.is_empty() => String::new(),
            _ => ", registered memory".to_owned(),
        };
        format!("io_uring, {}{memory}", describe(&self.files))
    }

    fn depth(&self) -> usize {
        self.depth
    }

    unsafe fn start(&mut self, read: PortRead) {
        let file = Fixed(read.file as u32);
        let len_bytes = read.len_bytes.min(MAX_READ_BYTES);
        let len = len_bytes as u32;
        let entry = match self.memory.index(read.memory.addr(), len_bytes) {
            Some(index) => opcode::ReadFixed::new(file, read.memory, len, index).offset(read.offset).build(),
            None => opcode::Read::new(file, read.memory, len).offset(read.offset).build(),
        };
        let queue = &self.queues[read.file];
        let requests = len_bytes.div_ceil(queue.request_bytes);
        self.requests[read.id as usize] = requests;
        self.all_requests += requests;
        // A buffered read would be copied before the call that submits it returns.
        let may_wait = !self.files[read.file].is_direct || self.all_requests > queue.requests / 2;
        let flags = if may_wait { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        let entry = entry.flags(flags).user_data(read.id.into());
        // SAFETY: this function's own contract.
        unsafe { self.ring.submission().push(&entry) }.expect("the ring has an entry for each read");
        self.under_way += 1;
    }

    fn submit(&mut self) -> io::Result<()> {
        while !self.ring.submission().is_empty() {
            match self.ring.submit() {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_busy(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn take(&mut self, wait: Duration, ended: &mut Vec<Ended>) -> io::Result<()> {
        self.submit()?;
        let until = Instant::now() + wait;
        while self.collect(ended) == 0 && self.under_way > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if self.ring.submission().len() == self.under_way {
                // The kernel took none, and can report none.
                std::thread::sleep(left.min(Duration::from_millis(1)));
                self.submit()?;
                continue;
            }
            let left = Timespec::from(left);
            match self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&left)) {
                // It has not waited then.
                Err(error) if is_busy(&error) => std::thread::sleep(Duration::from_millis(1)),
                Err(error) if !is_early(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn forget_memory(&mut self) {
        // An error means that there was none.
        let _ = self.ring.submitter().unregister_buffers();
        self.memory = Registered { pieces: Vec::new(), areas: Vec::new(), refusal: None };
    }
}

/// The kernel is short of memory, or of room for reports: later it takes more.
fn is_busy(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY))
}

/// The wait ended without a report.
fn is_early(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR))
}

impl Drop for Uring {
    fn drop(&mut self) {
        // What the kernel has not taken, it never will.
        let mut left = self.under_way - self.ring.submission().len();
        if left > 0 {
            // As many as can be; the others end by themselves. Old kernels do not know this.
            let _ = self.ring.submitter().register_sync_cancel(None, CancelBuilder::any());
        }
        let wait = EnterFlags::GETEVENTS.bits();
        while left > 0 {
            let count = self.ring.completion().count();
            left -= count;
            if count == 0 {
                // SAFETY: there is no argument. Nothing is submitted: those entries stay in the ring.
                let waited = unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 1, wait, None) };
                if waited.is_err() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        let _ = self.ring.submitter().unregister_buffers();
    }
}
