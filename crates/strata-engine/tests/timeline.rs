//! Timelines: what is recorded, written, read back, added up and shown; and files that are none.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use strata_engine::bench::Decode;
use strata_engine::{Engine, EngineOptions, Stop, Timeline, Totals, Trace};
use strata_store::scheduler::Class;
use strata_store::timeline::{Lane, Recording, Span};

const MS: u64 = 1_000_000;

fn written(trace: &Trace) -> Vec<u8> {
    let mut out = Vec::new();
    trace.write(&mut out).unwrap();
    out
}

fn read(bytes: &[u8]) -> Result<Trace, String> {
    Trace::read(bytes, bytes.len() as u64).map_err(|error| error.to_string())
}

fn span(lane: Lane, name: &'static str, layer: Option<u32>, ms: (u64, u64)) -> Span {
    Span { lane, name, layer, start_ns: ms.0 * MS, end_ns: ms.1 * MS, bytes: 0, class: None }
}

fn record(reader: u16, layer: u32, class: Class, bytes: u64, ms: (u64, u64)) -> Span {
    Span { bytes, class: Some(class), ..span(Lane::Read(reader), class.name(), Some(layer), ms) }
}

/// A run of 100 ms whose sums are easy: two layers, four reads of records and one of rows.
fn small() -> Recording {
    let spans = vec![
        span(Lane::Mixer, "embed", None, (0, 5)),
        span(Lane::Mixer, "mix gdn", Some(0), (5, 20)),
        record(0, 0, Class::Demand, 2_000_000, (10, 30)),
        record(1, 0, Class::Demand, 2_000_000, (15, 40)),
        span(Lane::Waits, "experts", Some(0), (20, 30)),
        span(Lane::Experts, "experts", Some(0), (30, 45)),
        Span { bytes: 500_000, ..span(Lane::NgramRows, "n-gram rows", None, (45, 50)) },
        span(Lane::Waits, "n-gram rows", None, (45, 50)),
        span(Lane::Mixer, "mix qsa", Some(1), (50, 60)),
        record(0, 1, Class::ReadAhead, 1_000_000, (55, 65)),
        record(1, 1, Class::HotSet, 1_500_000, (70, 75)),
        span(Lane::Waits, "experts", Some(1), (60, 65)),
        span(Lane::Experts, "experts", Some(1), (65, 90)),
        span(Lane::Head, "head", None, (92, 98)),
    ];
    Recording { wall_ns: 100 * MS, spans, dropped: 0 }
}

#[test]
fn totals_are_the_sums_by_hand() {
    let totals = Totals::of(&Trace::new("t", "d", &small()));
    assert_eq!(totals.drive.merged, [(10 * MS, 40 * MS), (45 * MS, 50 * MS), (55 * MS, 65 * MS), (70 * MS, 75 * MS)]);
    assert_eq!(totals.drive.busy_ns, 50 * MS);
    assert_eq!(
        totals.drive.gaps(100 * MS),
        [(0, 10), (40, 45), (50, 55), (65, 70), (75, 100)].map(|(start, end)| (start * MS, end * MS))
    );
    assert_eq!(totals.drive.idle_ns(100 * MS), 50 * MS);
    // 0-20, 30-45, 50-60, 65-90, 92-98.
    assert_eq!((totals.compute.busy_ns, totals.compute.gaps(100 * MS).len()), (76 * MS, 5));
    assert_eq!(totals.waited_ns, 20 * MS);
    assert_eq!(totals.waits, [("experts".to_owned(), 15 * MS), ("n-gram rows".to_owned(), 5 * MS)]);
    assert_eq!(totals.read_bytes, 7_000_000);
    let classes: Vec<_> = totals.classes.iter().map(|(_, reads, bytes)| (*reads, *bytes)).collect();
    assert_eq!(classes, [(2, 4_000_000), (1, 1_000_000), (1, 1_500_000)]);

    let segments: Vec<_> = totals.segments.iter().map(|s| (s.layer, s.start_ns / MS, s.end_ns / MS)).collect();
    assert_eq!(segments, [(0, 5, 45), (1, 45, 90)]);
    let layers = totals.layers.iter().map(|l| {
        let times = [l.wall_ns, l.mixer_ns, l.experts_ns, l.waits_ns, l.drive_idle_ns];
        (l.layer, times.map(|ns| ns / MS), l.reads, l.read_bytes)
    });
    let layers: Vec<_> = layers.collect();
    // No read: in layer 0 at 5-10 and 40-45, in layer 1 at 50-55, 65-70 and 75-90.
    assert_eq!(layers, [(0, [40, 15, 15, 10, 10], 2, 4_000_000), (1, [45, 10, 25, 10, 25], 2, 2_500_000)]);
}

#[test]
fn a_trace_is_read_back_equal() {
    for recording in [small(), synthetic(4, 40), Recording::default()] {
        let trace = Trace::new("a \"title\" </script>", "\u{1F980} on & <x>", &Recording { dropped: 3, ..recording });
        assert_eq!(read(&written(&trace)).unwrap(), trace);
    }
    let long = Trace::new(&"é".repeat(1000), "", &small());
    assert_eq!(read(&written(&long)).unwrap().title, "é".repeat(200));
}

#[test]
fn the_file_is_a_chrome_trace() {
    let file: Value = serde_json::from_slice(&written(&Trace::new("t", "d", &small()))).unwrap();
    let about = &file["otherData"];
    for (key, value) in [
        ("wall_s", json!(0.1)),
        ("drive_busy_s", json!(0.05)),
        ("drive_idle_s", json!(0.05)),
        ("compute_busy_s", json!(0.076)),
        ("compute_waited_s", json!(0.02)),
        ("waits_s", json!({ "experts": 0.015, "n-gram rows": 0.005 })),
        ("read_bytes", json!(7_000_000)),
        ("record_bytes", json!({ "demand": 4_000_000, "ahead": 1_000_000, "hot": 1_500_000 })),
        ("spans", json!(14)),
    ] {
        assert_eq!(about[key], value, "{key}");
    }
    let events = file["traceEvents"].as_array().unwrap();
    let names: BTreeSet<_> =
        events.iter().filter(|e| e["name"] == "thread_name").map(|e| e["args"]["name"].as_str().unwrap()).collect();
    let lanes = ["drive", "experts", "head", "mixer", "n-gram rows", "read 0", "read 1", "waits"];
    assert_eq!(names, BTreeSet::from(lanes));
    let ahead = events.iter().find(|e| e["name"] == "ahead").unwrap();
    let args = json!({ "layer": 1, "bytes": 1_000_000, "class": "ahead" });
    assert_eq!((&ahead["ph"], &ahead["args"]), (&json!("X"), &args));
    assert_eq!((&ahead["ts"], &ahead["dur"]), (&json!(55_000.0), &json!(10_000.0)));
}

#[test]
fn the_page_says_it_in_a_sentence_and_has_the_sums() {
    let page = Trace::new("bench prefill, 7 tokens", "m.gguf on a cpu", &small()).page();
    for part in [
        "<h1>The drive was busy 50.0 % of 100 ms; compute waited 20 ms.</h1>",
        "7.0 MB were read, 0.14 GB/s while the drive was busy",
        "Compute was busy 76.0 %; it waited 15 ms for experts, 5.00 ms for n-gram rows.",
        "bench prefill, 7 tokens",
        "<p class=\"muted\">50 ms in 5 gaps</p>",
        "data-start=\"75000000\" data-end=\"100000000\">25 ms</button> at 75 ms, layer 1",
        "<tr><th scope=\"row\">drive: any read</th><td>5</td><td>50 ms</td><td>50.0 %</td><td>7.0 MB</td><td>0.14 GB/s</td>",
        "<tr><th scope=\"row\">read 0</th><td>2</td><td>30 ms</td><td>30.0 %</td><td>3.0 MB</td><td>0.10 GB/s</td>",
        "2 of class demand, 4.0 MB; 1 of class ahead, 1.0 MB; 1 of class hot, 1.5 MB",
        "<tr><th scope=\"row\">1</th><td>45 ms</td><td>10 ms</td><td>25 ms</td><td>10 ms</td><td>25 ms</td><td>2</td>",
    ] {
        assert!(page.contains(part), "{part}\n{}", &page[..9000]);
    }
    assert!(!page.contains("not recorded"));
    // Nothing is fetched.
    for part in ["http:", "https:", "src=", "url(", "import"] {
        assert!(!page.contains(part), "{part}");
    }
    let nothing_read = Recording { spans: vec![span(Lane::Mixer, "mix gdn", Some(0), (0, 90))], ..small() };
    let page = Trace::new("t", "d", &Recording { dropped: 9, ..nothing_read }).page();
    assert!(page.contains("<h1>Nothing was read; compute was busy 90.0 % of 100 ms and waited 0 s.</h1>"));
    assert!(page.contains("9 spans were not recorded"));
    // Neither nothing nor a run of no time is too little for a page.
    for recording in [Recording::default(), Recording { wall_ns: 5, ..Recording::default() }] {
        assert!(Trace::new("", "", &recording).page().contains("Nothing was read"));
    }
}

#[test]
fn texts_of_a_file_stay_texts() {
    let evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&";
    let mut trace = Trace::new(evil, evil, &small());
    trace.names = trace.names.iter().map(|name| format!("{evil}{name}")).collect();
    let page = read(&written(&trace)).unwrap().page();
    let own = Trace::new("t", "d", &small()).page();
    for tag in ["<script", "</script", "<img", "<title", "</h1"] {
        assert_eq!(page.matches(tag).count(), own.matches(tag).count(), "{tag}");
    }
    assert!(page.contains("&lt;img src=x onerror=alert(2)&gt;") && page.contains("\\u003cimg"));
}

/// A file whose `edit` was done to the JSON of a good one.
fn edited(edit: impl FnOnce(&mut Value)) -> Result<Trace, String> {
    let mut file = serde_json::from_slice(&written(&Trace::new("t", "d", &small()))).unwrap();
    edit(&mut file);
    read(file.to_string().as_bytes())
}

/// The first span that is no part of the drive's lane.
fn first_span(file: &mut Value) -> &mut Value {
    let events = file["traceEvents"].as_array_mut().unwrap();
    events.iter_mut().find(|e| e["ph"] == "X" && e["name"] != "busy").unwrap()
}

#[test]
fn what_is_no_timeline_is_refused() {
    for (bytes, problem) in [
        (&b""[..], "EOF"),
        (b"\x7fELF\x00\x01", "expected value"),
        (b"[]", "not a timeline of strata"),
        (b"{}", "missing field `otherData`"),
        (b"{\"traceEvents\":[]}", "missing field `otherData`"),
        (b"{\"otherData\":{}}", "missing field `format`"),
        (b"{\"otherData\":7}", "invalid type"),
        (&b"[".repeat(1_000_000), "not a timeline of strata"),
        (&[b"{\"other\":".repeat(100_000), b"1".to_vec()].concat(), "EOF"),
    ] {
        let error = read(bytes).unwrap_err();
        assert!(error.contains(problem), "{problem} is not in {error}");
    }
    let error = Trace::read(&b""[..], 1 << 40).unwrap_err().to_string();
    assert!(error.contains("1099511627776 bytes are too many"), "{error}");

    type Edit = fn(&mut Value);
    let edits: [(Edit, &str); 22] = [
        (|f| f["otherData"]["format"] = json!("strata timeline 2"), "the format is `strata timeline 2`"),
        (|f| f["otherData"]["title"] = json!("x".repeat(401)), "the title has 401 bytes"),
        (|f| f["otherData"]["wall_s"] = json!(-1), "a run of -1 s"),
        (|f| f["otherData"]["wall_s"] = json!(1e7), "a run of 10000000 s"),
        (|f| f["otherData"]["wall_s"] = json!(0.09), "after the run"),
        (|f| f["otherData"]["dropped_spans"] = json!(-1), "invalid value"),
        (|f| f["traceEvents"] = json!({}), "a list of trace events"),
        (|f| first_span(f)["ts"] = json!(-1.0), "a span from -1 us"),
        (|f| first_span(f)["ts"] = json!("0"), "invalid type"),
        (|f| first_span(f)["dur"] = json!(1e300), "a span from"),
        (|f| first_span(f)["dur"] = Value::Null, "without `ts` or `dur`"),
        (|f| first_span(f)["tid"] = json!(77), "thread 77 has no name"),
        (|f| first_span(f)["tid"] = json!(-1), "invalid value"),
        (|f| first_span(f)["ph"] = json!("B"), "unknown variant `B`"),
        (|f| first_span(f)["cat"] = json!("x"), "unknown field `cat`"),
        (|f| first_span(f)["args"]["url"] = json!("x"), "unknown field `url`"),
        (|f| first_span(f)["args"]["layer"] = json!(1000), "layer 1000"),
        (|f| first_span(f)["args"]["bytes"] = json!(1u64 << 32), "invalid value"),
        (|f| first_span(f)["args"]["class"] = json!("urgent"), "`urgent` is no class of reads"),
        (|f| first_span(f)["args"]["class"] = Value::Null, "reads of records have a class"),
        (|f| first_span(f)["name"] = json!("x".repeat(401)), "a name has 401 bytes"),
        (
            |f| {
                let mut twice = f["traceEvents"][1].clone();
                twice["args"]["name"] = json!("drive");
                f["traceEvents"].as_array_mut().unwrap().push(twice);
            },
            "has two names",
        ),
    ];
    for (edit, problem) in edits {
        let error = edited(edit).unwrap_err();
        assert!(error.contains(problem), "{problem} is not in {error}");
    }
    for lane in ["read 1024", "read -1", "read", "disk", ""] {
        let error = edited(|f| {
            let event = json!({ "name": "thread_name", "ph": "M", "pid": 1, "tid": 5, "args": { "name": lane } });
            f["traceEvents"].as_array_mut().unwrap().push(event);
        });
        assert!(error.unwrap_err().contains(&format!("`{lane}` is no lane")), "{lane}");
    }
    let error = edited(|f| {
        let span = first_span(f).clone();
        let named = |i| {
            json!({ "name": format!("{i}"), "ph": "X", "pid": 1, "tid": span["tid"], "ts": 0, "dur": 0,
            "args": span["args"] })
        };
        f["traceEvents"].as_array_mut().unwrap().extend((0..1001).map(named));
    });
    assert!(error.unwrap_err().contains("more than 1000 different names"));
}

/// A file that was cut anywhere is refused; one in which any byte changed is refused or read, and its page made.
#[test]
fn broken_files_do_not_panic() {
    let good = written(&Trace::new("t", "d", &small()));
    let whole = good.trim_ascii_end().len();
    for end in 0..whole {
        assert!(read(&good[..end]).is_err(), "{end}");
    }
    for at in 0..good.len() {
        for byte in [b'0', b'9', b'"', b'-', b'{', 0xff] {
            let mut bytes = good.clone();
            bytes[at] = byte;
            if let Ok(trace) = read(&bytes) {
                assert!(!trace.page().is_empty());
            }
        }
    }
}

/// A model that streams: each layer needs 90 % of its experts, of 0.5 MB each, read by eight readers at 0.6 GB/s in all,
/// at most two layers ahead; experts are computed as they arrive. The drive pauses now and then.
fn synthetic(layers: u32, experts: u32) -> Recording {
    const READERS: usize = 8;
    const RECORD_BYTES: u64 = 524_288;
    const STRIPS: u64 = 4;
    let mut state = 1u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut spans = Vec::new();
    let push = |spans: &mut Vec<Span>, lane, name, layer, start_ns, end_ns| {
        spans.push(Span { lane, name, layer, start_ns, end_ns, bytes: 0, class: None });
    };
    let mut now = 3 * MS;
    push(&mut spans, Lane::Mixer, "embed", None, 0, now);
    let mut readers = [now; READERS];
    // When each layer was done: its slots are free for the layer after the next.
    let mut done = vec![0; layers as usize];
    for layer in 0..layers {
        let of_layer = Some(layer);
        let begun = now;
        let needed = u64::from(experts) * 9 / 10;
        if layer == 1 {
            let end = now + 90 * MS;
            spans.push(Span {
                bytes: 5_000_000,
                ..span(Lane::NgramRows, "n-gram rows", of_layer, (now / MS, end / MS))
            });
            push(&mut spans, Lane::Waits, "n-gram rows", of_layer, now, now + 60 * MS);
            now += 60 * MS;
        }
        for _ in 0..STRIPS {
            let mixer = if layer % 4 == 3 { "mix qsa" } else { "mix gdn" };
            let times = [("read streams", 5), (mixer, 20 + random(6) + layer as u64 % 4 * 2), ("write streams", 1)];
            for (name, ms) in times.into_iter().chain([("route", 2)]) {
                push(&mut spans, Lane::Mixer, name, of_layer, now, now + ms * MS);
                now += ms * MS + 20_000;
            }
        }
        // What was not forecast is read when the layer is routed, the rest since the layer before the last was done.
        let free = if layer >= 2 { done[layer as usize - 2] } else { 0 };
        let mut arrivals = Vec::new();
        for expert in 0..needed {
            let is_ahead = layer > 0 && expert * 100 < needed * 92;
            let earliest = if is_ahead { free.max(3 * MS) } else { now.max(begun) };
            let reader = (0..READERS).min_by_key(|reader| readers[*reader]).unwrap();
            let pause = if random(3000) == 0 { 60 * MS } else { 0 };
            let start = readers[reader].max(earliest) + pause;
            let end = start + RECORD_BYTES * READERS as u64 * 10 / 6 + random(MS);
            let class = if is_ahead { Class::ReadAhead } else { Class::Demand };
            let mut read = record(reader as u16, layer, class, RECORD_BYTES, (0, 0));
            (read.start_ns, read.end_ns) = (start, end);
            spans.push(read);
            readers[reader] = end;
            arrivals.push(end);
        }
        arrivals.sort_unstable();
        for arrivals in arrivals.chunks(4) {
            let arrival = arrivals[arrivals.len() - 1];
            if arrival > now {
                push(&mut spans, Lane::Waits, "experts", of_layer, now, arrival);
                now = arrival;
            }
            let end = now + MS + random(MS / 2);
            push(&mut spans, Lane::Experts, "experts", of_layer, now, end);
            now = end + 10_000;
        }
        for _ in 0..STRIPS {
            for (name, ms) in [("combine", 4), ("write streams", 1)] {
                push(&mut spans, Lane::Mixer, name, of_layer, now, now + ms * MS);
                now += ms * MS + 20_000;
            }
        }
        done[layer as usize] = now;
    }
    push(&mut spans, Lane::Head, "head", None, now, now + 12 * MS);
    Recording { wall_ns: now + 13 * MS, spans, dropped: 0 }
}

/// Whatever is random in it, these hold: all reads are there, what is busy and what is idle is the whole, and a layer's
/// parts are no more than its time.
#[test]
fn a_synthetic_run_adds_up() {
    let recording = synthetic(48, 512);
    let trace = Trace::new("synthetic", "", &recording);
    let totals = Totals::of(&trace);
    assert_eq!(totals.layers.len(), 48);
    assert_eq!(totals.layers.iter().map(|layer| layer.reads).sum::<u64>(), 48 * 460);
    assert_eq!(totals.read_bytes, 48 * 460 * 524_288 + 5_000_000);
    let idle_ns: u64 = totals.drive.gaps(trace.wall_ns).iter().map(|(start, end)| end - start).sum();
    assert_eq!(totals.drive.busy_ns + idle_ns, trace.wall_ns);
    // By brute force, at every tenth of a millisecond.
    let reads: Vec<_> =
        trace.spans.iter().filter(|span| span.class.is_some() || span.lane == Lane::NgramRows).collect();
    let samples = (0..trace.wall_ns).step_by(17 * MS as usize);
    let (mut busy, mut all) = (0, 0);
    for at in samples {
        all += 1;
        busy += u64::from(reads.iter().any(|span| (span.start_ns..span.end_ns).contains(&at)));
    }
    let (sampled, summed) = (busy as f64 / all as f64, totals.drive.busy_ns as f64 / trace.wall_ns as f64);
    assert!((sampled - summed).abs() < 0.01, "{sampled} {summed}");
    for layer in &totals.layers {
        assert!(layer.mixer_ns + layer.experts_ns + layer.waits_ns <= layer.wall_ns, "{layer:?}");
    }
    let segments: u64 = totals.segments.iter().map(|segment| segment.end_ns - segment.start_ns).sum();
    assert_eq!(segments, totals.layers.iter().map(|layer| layer.wall_ns).sum::<u64>());
}

/// More than 300,000 spans: 80 passes of a model of 8 layers.
fn many() -> Recording {
    let one = synthetic(8, 512);
    let mut many = Recording { wall_ns: one.wall_ns * 80, ..Recording::default() };
    for pass in 0..80 {
        let shift = pass * one.wall_ns;
        let shifted = |span: &Span| Span { start_ns: span.start_ns + shift, end_ns: span.end_ns + shift, ..*span };
        many.spans.extend(one.spans.iter().map(shifted));
    }
    many
}

#[test]
fn many_spans_make_a_page_of_moderate_size() {
    let many = many();
    assert!(many.spans.len() > 300_000, "{}", many.spans.len());
    let trace = read(&written(&Trace::new("many", "", &many))).unwrap();
    assert_eq!(trace.spans.len(), many.spans.len());
    assert!(trace.page().len() < 40 * trace.spans.len());
}

/// A run of the shipped model: every layer has its spans, and nothing ends after the run.
#[test]
fn a_run_is_recorded() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/strata-mini/strata-mini-iq2xs-q4_0.gguf");
    let timeline = Timeline::with_room(100_000);
    let mut options = EngineOptions { threads: 1, ..EngineOptions::default() };
    options.model.timeline = timeline.clone();
    let mut engine = Engine::open(&model, &options).unwrap();
    let work = Decode { context: vec![5, 6, 7], ids: vec![8, 9] };
    let before = Instant::now();
    engine.run_decode(&work, true, &Stop::new(false)).unwrap();
    let elapsed_ns = before.elapsed().as_nanos() as u64;
    let trace = Trace::new("decode", "", &timeline.take());
    assert_eq!(trace.dropped_spans, 0);
    assert!(trace.wall_ns > 0 && trace.wall_ns < elapsed_ns);
    // Two tokens, twelve layers, three of them attention: neither the run before nor the context.
    let count = |name: &str| {
        let number = trace.names.iter().position(|known| known == name).unwrap_or_else(|| panic!("no {name}"));
        trace.spans.iter().filter(|span| usize::from(span.name) == number && span.lane != Lane::Waits).count()
    };
    assert_eq!((count("mix gdn"), count("mix qsa"), count("embed")), (18, 6, 2));
    let totals = Totals::of(&trace);
    let segments: Vec<_> = totals.segments.iter().map(|segment| segment.layer).collect();
    assert_eq!(segments, [(0..12).collect::<Vec<_>>(), (0..12).collect()].concat());
    assert!(totals.compute.busy_ns + totals.waited_ns <= trace.wall_ns);
    assert_eq!(read(&written(&trace)).unwrap(), trace);
}
