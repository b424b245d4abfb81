//! What this machine is, as far as the system tells.

use std::collections::BTreeSet;
use std::fs;

use crate::memory::Memory;

/// A machine's facts. What the system does not tell is `None`.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The processor's name.
    pub processor: Option<String>,
    /// Cores of the machine.
    pub cores: Option<usize>,
    /// Threads that this process may run at the same time.
    pub threads: usize,
    /// Its memory, and what this process may have of it.
    pub memory: Memory,
}

impl Machine {
    /// This machine.
    pub fn detect() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self {
            processor: values(&cpuinfo, "model name").next().map(str::to_owned),
            cores: count_cores(&cpuinfo),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            memory: Memory::detect(),
        }
    }
}

/// Distinct pairs of socket and core.
fn count_cores(cpuinfo: &str) -> Option<usize> {
    let pairs: BTreeSet<_> = values(cpuinfo, "physical id").zip(values(cpuinfo, "core id")).collect();
    (!pairs.is_empty()).then_some(pairs.len())
}

/// What the lines `key : value` of this key say.
pub(crate) fn values<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_linux_tells_is_understood() {
        let cpu = |id, core| {
            format!("processor\t: {id}\nmodel name\t: A CPU: fast\nphysical id\t: 0\ncore id\t\t: {core}\n\n")
        };
        let text = [cpu(0, 0), cpu(1, 0), cpu(2, 1), cpu(3, 1)].concat();
        assert_eq!(count_cores(&text), Some(2), "two threads a core");
        assert_eq!(values(&text, "model name").next(), Some("A CPU: fast"));
        assert_eq!(count_cores("Processor: ARM"), None);
    }
}
