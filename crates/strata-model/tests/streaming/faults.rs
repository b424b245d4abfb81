//! Drives that fail, while a model runs: a fault that can be forgiven changes no byte, any other ends the request with an
//! error that names what is wrong, and the next request on the same model gives the right bytes.

use std::cell::Cell;
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use strata_gguf::Gguf;
use strata_model::ModelError;
use strata_model::qwen4exp::{Model, Observer, Options, Streaming};
use strata_store::reads::ReaderKind;
use strata_store::reads::faulty::{Fault, Faults, Rule};
use strata_store::{ExpertId, Lookahead, StoreError};

use crate::{Bed, Seen, mini, run, run_unobserved, streams};

pub(crate) const ALWAYS: u32 = u32::MAX;

/// A short text, and how it comes out.
pub(crate) struct Case {
    pub(crate) bed: Bed,
    pub(crate) expected: Vec<u32>,
    /// Where the down matrices of the experts lie, and their bytes: more than two pages, so that the one in the middle
    /// is read for no other expert.
    downs: Vec<u64>,
    down_bytes: usize,
    pub(crate) table: Range<u64>,
    experts: u32,
}

impl Case {
    pub(crate) fn new() -> Self {
        let bed = mini(60);
        let gguf = Gguf::open(&bed.path).unwrap();
        let mut model = bed.open(2, Options::default(), &Faults::default()).0;
        let expected = run_unobserved(&mut model, &bed.ids).unwrap();
        let experts = model.config().moe.experts;
        let down = |layer| gguf.tensor(&format!("blk.{layer}.ffn_down_exps.weight")).unwrap();
        let down_bytes = down(0).len_bytes as usize / experts;
        assert!(down_bytes > 2 * 4096);
        let table = gguf.tensor("per_layer_token_embd.weight").unwrap();
        Self {
            expected,
            downs: (0..model.config().layers).map(|layer| down(layer).offset).collect(),
            down_bytes,
            table: table.offset..table.offset + table.len_bytes,
            experts: experts as u32,
            bed,
        }
    }

    /// With a quarter of the experts in memory.
    pub(crate) fn open(&self, change: impl FnOnce(&mut Streaming), faults: &Faults) -> (Model, Seen) {
        let mut options = Options { strip_rows: 20, ..streams(self.downs.len() * self.experts as usize / 4) };
        change(&mut options.streaming);
        self.bed.open(2, options, faults)
    }

    /// The matrix of an expert, and a byte that is read for it alone.
    fn down(&self, expert: ExpertId) -> (u64, Range<u64>) {
        let offset = self.downs[expert.layer as usize] + u64::from(expert.index) * self.down_bytes as u64;
        let middle = offset + self.down_bytes as u64 / 2;
        (offset, middle..middle + 1)
    }

    #[track_caller]
    fn is_right(&self, model: &mut Model, seen: &Seen) {
        match run_unobserved(model, &self.bed.ids) {
            Ok(logits) => assert!(logits == self.expected, "other bytes"),
            Err(error) => panic!("{error}"),
        }
        seen.check_none_is_out();
    }

    #[track_caller]
    fn fails(&self, model: &mut Model, seen: &Seen) -> StoreError {
        let error = run_unobserved(model, &self.bed.ids).map(|_| ()).unwrap_err();
        seen.check_none_is_out();
        match error {
            ModelError::Store(error) => error,
            other => panic!("{other}"),
        }
    }

    /// An expert that the text needs.
    fn demanded(&self) -> ExpertId {
        let (mut model, seen) = self.open(|_| {}, &Faults::default());
        self.is_right(&mut model, &seen);
        // Of a layer in the middle.
        seen.with(|events| *events.demanded.iter().find(|expert| expert.layer == 5).unwrap())
    }
}

pub(crate) fn rule(bytes: Range<u64>, one_in: u32, times: u32, fault: Fault) -> Vec<Rule> {
    vec![Rule { file: 0, bytes, one_in, times, fault }]
}

#[test]
fn what_can_be_forgiven_changes_no_byte() {
    let case = Case::new();
    let expert = case.demanded();
    let (_, of_expert) = case.down(expert);
    let all = 0..u64::MAX;
    for rules in [
        rule(of_expert, 1, 1, Fault::Error),
        rule(case.table.clone(), 1, 1, Fault::Error),
        rule(all.clone(), 1, ALWAYS, Fault::Short),
        rule(all.clone(), 3, ALWAYS, Fault::Short),
        rule(all, 4, ALWAYS, Fault::Late(Duration::from_millis(2))),
    ] {
        let faults = Faults::default();
        let (mut model, seen) = case.open(|_| {}, &faults);
        faults.set(rules);
        case.is_right(&mut model, &seen);
        assert_eq!(model.streaming().unwrap().counts().failed, Default::default());
    }
}

#[test]
fn field_report_29_52_an_expert_that_cannot_be_read_ends_the_request_and_no_more() {
    let case = Case::new();
    let wanted = case.demanded();
    let (offset, byte) = case.down(wanted);
    for lookahead in [Lookahead::Off, Lookahead::Router] {
        for fault in [Fault::Error, Fault::Zero] {
            let faults = Faults::default();
            let (mut model, seen) = case.open(|streaming| streaming.lookahead = lookahead, &faults);
            faults.set(rule(byte.clone(), 1, ALWAYS, fault));
            for _ in 0..2 {
                let error = case.fails(&mut model, &seen);
                let text = error.to_string();
                let StoreError::Expert { expert, source } = error else { panic!("{text}") };
                assert_eq!(expert, wanted);
                let (file, at, wanted_bytes, got_bytes) = match (*source, fault) {
                    (StoreError::Read { file, offset, wanted_bytes, got_bytes, source }, Fault::Error) => {
                        assert_eq!(source.raw_os_error(), Some(5));
                        (file, offset, wanted_bytes, got_bytes)
                    }
                    (StoreError::EndOfFile { file, offset, wanted_bytes, got_bytes }, Fault::Zero) => {
                        (file, offset, wanted_bytes, got_bytes)
                    }
                    (other, _) => panic!("{other}"),
                };
                assert_eq!((at, wanted_bytes, got_bytes), (offset, case.down_bytes, 0));
                assert!(file.ends_with("strata-mini-iq2xs-q4_0.gguf"));
                let ExpertId { layer, index } = wanted;
                for part in [&format!("expert {index} of layer {layer}"), ".gguf", &format!("offset {offset}"), "9216"]
                {
                    assert!(text.contains(part), "{part}: {text}");
                }
            }
            faults.set(Vec::new());
            case.is_right(&mut model, &seen);
        }
    }
}

#[test]
fn rows_that_cannot_be_read_end_the_request_and_no_more() {
    let case = Case::new();
    for rows_when in [strata_model::qwen4exp::RowsWhen::Before, strata_model::qwen4exp::RowsWhen::Beside] {
        for fault in [Fault::Error, Fault::Zero] {
            let faults = Faults::default();
            let (mut model, seen) = case.open(|streaming| streaming.rows_when = rows_when, &faults);
            // Of hundreds of reads, some; what was under way when the request ended is still to come then.
            faults.set(rule(case.table.clone(), 40, ALWAYS, Fault::Late(Duration::from_millis(5))));
            case.is_right(&mut model, &seen);
            faults.set(rule(case.table.clone(), 1, ALWAYS, fault));
            match case.fails(&mut model, &seen) {
                StoreError::Read { offset, got_bytes: 0, .. } if fault == Fault::Error => {
                    assert!(case.table.contains(&offset));
                }
                StoreError::EndOfFile { offset, got_bytes: 0, .. } if fault == Fault::Zero => {
                    assert!(case.table.contains(&offset));
                }
                other => panic!("{other}"),
            }
            faults.set(Vec::new());
            case.is_right(&mut model, &seen);
        }
    }
}

#[test]
fn field_report_50_a_read_that_does_not_end_ends_the_request() {
    let case = Case::new();
    let expert = case.demanded();
    let (offset, byte) = case.down(expert);
    for (bytes, is_row) in [(byte, false), (case.table.clone(), true)] {
        let faults = Faults::default();
        let patience = Duration::from_millis(150);
        let (mut model, seen) = case.open(|streaming| streaming.stuck_after = Some(patience), &faults);
        faults.set(rule(bytes, 1, 1, Fault::Stuck));
        let start = Instant::now();
        let error = case.fails(&mut model, &seen);
        assert!(start.elapsed() >= patience);
        let StoreError::Stuck { offset: at, got_bytes, waited_s, .. } = error else { panic!("{error}") };
        assert!(if is_row { case.table.contains(&at) } else { at == offset }, "{at}");
        assert!(got_bytes == 0 && waited_s >= patience.as_secs_f64(), "{waited_s}");
        // The drive answers at last.
        faults.set(Vec::new());
        let until = Instant::now() + Duration::from_secs(20);
        // Perhaps not before it is asked.
        while let Err(error) = run_unobserved(&mut model, &case.bed.ids) {
            assert!(matches!(error, ModelError::Store(StoreError::Stuck { .. })) && Instant::now() < until, "{error}");
        }
        case.is_right(&mut model, &seen);
    }
}

/// Stops at the look of this number.
struct StopsAt {
    left: Cell<usize>,
}

impl Observer for StopsAt {
    fn is_cancelled(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left == 0
    }
}

#[test]
fn a_request_can_be_stopped_at_every_strip_and_group_of_experts() {
    let case = Case::new();
    let faults = Faults::default();
    let (mut model, seen) = case.open(|_| {}, &faults);
    // Many reads are under way whenever it stops.
    faults.set(rule(0..u64::MAX, 3, ALWAYS, Fault::Late(Duration::from_millis(1))));
    // 12 layers of three strips, then four single tokens; and each layer's experts come in one group or more, the end of
    // which is looked at, too.
    let looks = 12 * (3 + 2) + 4 * 12 * (1 + 2);
    for at in (0..looks).step_by(2) {
        let stopped = run(&mut model, &case.bed.ids, &mut StopsAt { left: Cell::new(at) });
        let error = stopped.map(|_| ()).unwrap_err();
        assert!(matches!(error, ModelError::Cancelled), "{error}");
        seen.check_none_is_out();
        if at % 12 == 5 {
            case.is_right(&mut model, &seen);
        }
    }
    let logits = run(&mut model, &case.bed.ids, &mut StopsAt { left: Cell::new(usize::MAX) }).unwrap();
    assert!(logits == case.expected);
    // Nothing is kept from giving way: the arena can be made as small as the law allows.
    let depth = model.streaming().unwrap().options().depth as usize;
    model.shrink(2 * 8 + depth).unwrap();
    case.is_right(&mut model, &seen);
}

#[test]
fn read_ahead_that_fails_matters_only_when_it_is_needed() {
    let case = Case::new();
    let (mut model, seen) = case.open(|_| {}, &Faults::default());
    case.is_right(&mut model, &seen);
    drop(model);
    let (unneeded, needed) = seen.with(|events| {
        let unneeded: Vec<_> = events.forecast.difference(&events.demanded).copied().collect();
        let needed: Vec<_> = events.forecast.intersection(&events.demanded).copied().collect();
        (unneeded, needed)
    });
    assert!(unneeded.len() > 3 && needed.len() > 100, "{} {}", unneeded.len(), needed.len());
    let fails = |experts: &[ExpertId]| -> Vec<Rule> {
        experts.iter().flat_map(|expert| rule(case.down(*expert).1, 1, ALWAYS, Fault::Error)).collect()
    };
    let faults = Faults::default();
    let (mut model, seen) = case.open(|_| {}, &faults);
    faults.set(fails(&unneeded));
    case.is_right(&mut model, &seen);
    let failed = model.streaming().unwrap().counts().failed;
    assert!(failed[strata_store::scheduler::Class::ReadAhead].records > 0, "{failed:?}");

    let one = needed[needed.len() / 2];
    faults.set(fails(&[one]));
    let error = case.fails(&mut model, &seen);
    assert!(matches!(error, StoreError::Expert { expert, .. } if expert == one), "{error}");
    faults.set(Vec::new());
    case.is_right(&mut model, &seen);
}

#[test]
fn a_system_that_refuses_to_read_ends_requests_while_it_does() {
    let case = Case::new();
    let faults = Faults::default();
    let (mut model, seen) = case.open(|_| {}, &faults);
    for _ in 0..3 {
        faults.refuse(true);
        let error = model.load_experts(&mut |_, _| true).unwrap_err();
        assert!(matches!(error, ModelError::Store(StoreError::Port { .. })), "{error}");
        let error = case.fails(&mut model, &seen);
        assert!(matches!(&error, StoreError::Port { source, .. } if source.raw_os_error() == Some(6)), "{error}");
        assert!(error.to_string().contains("the system refuses to read by"), "{error}");
        faults.refuse(false);
        case.is_right(&mut model, &seen);
    }
    // What is in memory needs no drive; what failed between requests is no failure of the next one.
    model.load_experts(&mut |_, _| true).unwrap();
    faults.refuse(true);
    assert!(model.load_experts(&mut |_, _| true).is_err());
    faults.refuse(false);
    case.is_right(&mut model, &seen);
}

#[test]
fn an_expert_that_cannot_be_loaded_at_the_start_is_named() {
    let case = Case::new();
    let faults = Faults::default();
    let (mut model, seen) = case.open(|_| {}, &faults);
    // Where nothing is known, the first experts of every layer are the ones to stay.
    let expert = ExpertId { layer: 3, index: 2 };
    faults.set(rule(case.down(expert).1, 1, ALWAYS, Fault::Error));
    let error = model.load_experts(&mut |_, _| true).unwrap_err();
    assert!(error.to_string().contains("expert 2 of layer 3 could not be read"), "{error}");
    faults.set(Vec::new());
    model.load_experts(&mut |_, _| true).unwrap();
    case.is_right(&mut model, &seen);
}

/// A copy of the model that may be spoiled.
fn copy(bed: &Bed) -> (tempfile::TempDir, PathBuf) {
    // Beside the build, where direct reads are more likely than in memory.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::copy(&bed.path, &path).unwrap();
    (dir, path)
}

#[test]
fn a_file_that_is_cut_off_or_replaced_while_it_is_used() {
    let case = Case::new();
    let (_dir, path) = copy(&case.bed);
    // Near the end, so that little has to be written back.
    let cut = case.downs.iter().max().unwrap() + 5000;
    let rest = std::fs::read(&path).unwrap().split_off(cut as usize);
    for reader in [ReaderKind::Auto, ReaderKind::Threads, ReaderKind::Buffered, ReaderKind::Mmap] {
        if cfg!(not(target_os = "linux")) && reader == ReaderKind::Mmap {
            continue;
        }
        let bed = Bed { path: path.clone(), ids: case.bed.ids.clone(), is_precise: false };
        let mut options = streams(300);
        options.streaming.reader = reader;
        let (mut model, seen) = bed.open(2, options, &Faults::default());
        case.is_right(&mut model, &seen);

        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(cut).unwrap();
        let error = case.fails(&mut model, &seen);
        let text = error.to_string();
        assert!(text.contains("m.gguf") && text.contains("was shortened or replaced"), "{reader}: {text}");
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(&rest).unwrap();
        case.is_right(&mut model, &seen);

        // What was opened is read on, whatever its name means now.
        let kept = path.with_extension("kept");
        std::fs::rename(&path, &kept).unwrap();
        std::fs::write(&path, "another file").unwrap();
        case.is_right(&mut model, &seen);
        std::fs::rename(&kept, &path).unwrap();
    }
}
