//! Small stories of early forecasts with their exact answers.

use strata_store::scheduler::{Class, Forecasts, PassKind, Read, Scheduler};

use crate::scenarios::{demands, finish, layer, layer_with, order, reads, scheduler, serve};

/// A pass of a single token in which layer 0 demands nothing, with a forecast of layer 1 and an early one of layer 2.
fn early(s: &mut Scheduler, idle_records: f64, next: &[u32], after: &[u32]) -> Vec<Read> {
    s.begin_pass(PassKind::Decode);
    layer_with(s, 0, &[], |s| {
        s.forecast_ranked(1, next);
        s.forecast_ranked(2, after);
    });
    s.expect_idle(idle_records);
    reads(s)
}

#[test]
fn early_guesses_come_after_those_of_the_next_layer_that_are_worth_it() {
    use Class::ReadAhead as A;
    let mut s = scheduler(30, 8, &[]);
    // Both believed to be right by one half: time for three and for two thirds of a fourth.
    let started = early(&mut s, 3.7, &[7, 3], &[4, 5, 6]);
    assert_eq!(order(&started), [(A, 1, 7), (A, 1, 3), (A, 2, 4), (A, 2, 5)]);
    finish(&mut s, &started);
    // The layer's later forecast takes the early one's place: 6, which was not read, is not expected any more.
    layer_with(&mut s, 1, &[7], |s| {
        s.forecast_ranked(2, &[5, 9, 1]);
        s.expect_idle(0.0);
    });
    assert_eq!(s.unread_ahead(2), 2);
    s.expect_idle(1.0);
    let started = reads(&mut s);
    assert_eq!(order(&started), [(A, 2, 9)]);
    finish(&mut s, &started);
    // What was read early is still there, whether the later forecast names it or not.
    s.demand(2, &demands(&[(4, 1), (5, 1), (6, 1)])).unwrap();
    s.close(2);
    let started = reads(&mut s);
    assert_eq!(order(&started), [(Class::Demand, 2, 6)]);
    finish(&mut s, &started);
    serve(&mut s, 2);
    s.end_pass();
    let counts = s.counts();
    assert_eq!((counts.ahead.records, counts.missed.records), (3, 1));
    assert_eq!((counts.read[A].records, counts.wasted[A].records), (5, 2), "3 of layer 1 and 9 of layer 2 in vain");
    assert_eq!(counts.forecast, Forecasts { named: 2 + 3, right: 1 + 1, missing: 1 + 3 });
    assert_eq!(counts.early_forecast, Forecasts { named: 3, right: 3, missing: 3 });
}

#[test]
fn what_an_early_guess_brings_too_late_is_not_read_again() {
    let mut s = scheduler(30, 8, &[]);
    let started = early(&mut s, 1.0, &[], &[4]);
    assert_eq!(order(&started), [(Class::ReadAhead, 2, 4)]);
    layer_with(&mut s, 1, &[], |s| s.forecast_ranked(2, &[4, 5]));
    assert_eq!(order(&reads(&mut s)), [], "4 is on its way, and there is no time for 5");
    s.demand(2, &demands(&[(4, 1)])).unwrap();
    s.close(2);
    assert_eq!((s.missing(), s.next_read()), (1, None));
    finish(&mut s, &started);
    assert_eq!(serve(&mut s, 2), [4]);
    assert_eq!(s.counts().wasted[Class::ReadAhead].records, 0);
}

#[test]
fn an_early_forecast_is_asked_for_when_there_is_time_for_more_than_the_next_layers() {
    let mut s = scheduler(30, 8, &[]);
    s.begin_pass(PassKind::Decode);
    s.demand(0, &demands(&[(1, 1), (2, 1)])).unwrap();
    let started = reads(&mut s);
    // What is missing is read before the time that counts.
    assert_eq!([0.9, 1.0].map(|idle_records| s.has_time_for_early(idle_records)), [false, true]);
    // Two guesses that are believed to be right by one half; the second is worth it when half of it has time.
    s.forecast_ranked(1, &[4, 5]);
    assert_eq!([1.0, 1.4, 2.9, 3.0].map(|idle| s.has_time_for_early(idle)), [false, false, false, true]);
    finish(&mut s, &started);
    s.expect_idle(9.0);
    let ahead = reads(&mut s);
    assert_eq!(ahead.len(), 2);
    assert_eq!([2.9, 3.0].map(|idle| s.has_time_for_early(idle)), [false, true], "both are on their way");
    finish(&mut s, &ahead);
}

#[test]
fn early_guesses_that_were_wrong_are_asked_for_no_more() {
    let mut s = scheduler(30, 8, &[]);
    // By hand: of 8,000 bytes that are forgiven, 4,000 in vain are too many.
    for (wrong, is_worth_it) in [(&[0, 1, 2], true), (&[3, 4, 5], false)] {
        let started = early(&mut s, 9.0, &[], wrong);
        finish(&mut s, &started);
        layer(&mut s, 1, &[]);
        layer(&mut s, 2, &[]);
        assert_eq!(s.has_time_for_early(9.0), is_worth_it);
        s.end_pass();
    }
    // They are no reason not to read what the next layer is expected to need.
    assert_eq!(early(&mut s, 9.0, &[7, 3], &[4]).len(), 2);
}
