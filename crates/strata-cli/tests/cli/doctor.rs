//! `strata doctor`: what it says of the machine that the tests run on.

use serde_json::Value;

use crate::strata;

#[test]
fn instruction_sets_are_listed_with_what_they_lack() {
    let shown: Value = serde_json::from_str(&strata(&["doctor", "--isa", "--json"]).ok()).unwrap();
    let isas = shown["isas"].as_array().unwrap();
    let names: Vec<_> = isas.iter().map(|isa| isa["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["portable", "avx2", "avx512", "amx"]);
    for isa in isas {
        let is_available = isa["available"].as_bool().unwrap();
        assert_eq!(isa["missing"].as_array().unwrap().is_empty(), is_available, "{isa}");
        assert_eq!(isa["arithmetic"].is_string(), is_available, "{isa}");
        // What is said to be available runs, and nothing else does.
        let run = strata(&["run", "--raw", "-n", "1", "--isa", isa["name"].as_str().unwrap(), "hi"]);
        assert_eq!(run.code, Some(if is_available { 0 } else { 1 }), "{isa} {run:?}");
    }
    assert_eq!((&isas[0]["available"], &isas[0]["arithmetic"]), (&true.into(), &"float32".into()));
    let best = isas.iter().rfind(|isa| isa["available"] == true).unwrap();
    assert_eq!(shown["auto"], best["name"]);
    assert!(shown["threads"].as_u64().unwrap() >= 1);
    assert_eq!(shown.get("memory_available_bytes"), None);
}

#[test]
fn people_read_the_same() {
    let (all, isa) = (strata(&["doctor"]).ok(), strata(&["doctor", "--isa"]).ok());
    for name in ["processor", "cores", "portable", "avx2", "avx512", "amx", "chosen by `auto`"] {
        assert!(all.contains(name) && isa.contains(name), "{name}\n{all}");
    }
    assert!(all.contains("memory") && !isa.contains("memory"));
    let shown: Value = serde_json::from_str(&strata(&["doctor", "--json"]).ok()).unwrap();
    assert!(shown.get("memory_available_bytes").is_some());
}
