//! What this machine is, as far as the system tells.

use std::collections::BTreeSet;
use std::fs;

/// A machine's facts. What the system does not tell is `None`.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The processor's name.
    pub processor: Option<String>,
    /// Cores of the machine.
    pub cores: Option<usize>,
    /// Threads that this process may run at the same time.
    pub threads: usize,
    /// Memory that can be had ([`available_bytes`]).
    pub available_bytes: Option<u64>,
}

impl Machine {
    /// This machine.
    pub fn detect() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self {
            processor: values(&cpuinfo, "model name").next().map(str::to_owned),
            cores: count_cores(&cpuinfo),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            available_bytes: available_bytes(),
        }
    }
}

/// Memory that this process can still have without others losing theirs: the system's, within the limit of its control
/// group. `None` where the system does not tell (all but Linux).
pub fn available_bytes() -> Option<u64> {
    let system = parse_available(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let number = |name: &str| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse::<u64>().ok();
    // A group without a limit says `max`.
    let group = number("memory.max").map(|max| max.saturating_sub(number("memory.current").unwrap_or(0)));
    Some(group.map_or(system, |group| group.min(system)))
}

fn parse_available(meminfo: &str) -> Option<u64> {
    let kib = values(meminfo, "MemAvailable").next()?.strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    Some(kib * 1024)
}

/// Distinct pairs of socket and core.
fn count_cores(cpuinfo: &str) -> Option<usize> {
    let pairs: BTreeSet<_> = values(cpuinfo, "physical id").zip(values(cpuinfo, "core id")).collect();
    (!pairs.is_empty()).then_some(pairs.len())
}

/// What the lines `key : value` of this key say.
fn values<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
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
        let meminfo = "MemTotal:       24689764 kB\nMemFree:  1 kB\nMemAvailable:   23000000 kB\n";
        assert_eq!(parse_available(meminfo), Some(23_552_000_000));
        assert_eq!(parse_available("MemTotal: 1 kB"), None);
    }
}
