//! What this machine is, as far as the system tells.

use std::collections::BTreeSet;
use std::fs;

use crate::memory::{Memory, parse_kib};

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
    /// Programs that ran or waited for a processor or a drive in the last minute, on average.
    pub load: Option<f64>,
    /// Its swap, if it has any.
    pub swap: Option<Swap>,
}

/// Room on a drive where the system puts memory that it takes from programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// All of it.
    pub total_bytes: u64,
    /// What is in use.
    pub used_bytes: u64,
}

impl Swap {
    fn parse(meminfo: &str) -> Option<Self> {
        let total_bytes = parse_kib(meminfo, "SwapTotal").filter(|bytes| *bytes > 0)?;
        Some(Self { total_bytes, used_bytes: total_bytes.saturating_sub(parse_kib(meminfo, "SwapFree")?) })
    }
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
            load: fs::read_to_string("/proc/loadavg").ok().and_then(|text| text.split(' ').next()?.parse().ok()),
            swap: Swap::parse(&fs::read_to_string("/proc/meminfo").unwrap_or_default()),
        }
    }
}

/// What makes two runs of the same work on the same machine differ. What the system does not tell is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Conditions {
    /// The processor's clock now, the fastest of its cores.
    pub clock_mhz: Option<f64>,
    /// The hottest of the machine's thermal zones now.
    pub temperature_c: Option<f64>,
    /// Bytes that the machine has written to swap: since it was started, or since another look at it.
    pub swapped_bytes: Option<u64>,
}

impl Conditions {
    /// As they are now.
    pub fn now() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let vmstat = fs::read_to_string("/proc/vmstat").unwrap_or_default();
        let clocks = values(&cpuinfo, "cpu MHz").filter_map(|mhz| mhz.parse::<f64>().ok());
        let zones = fs::read_dir("/sys/class/thermal").into_iter().flatten().flatten();
        let millidegrees =
            zones.filter_map(|zone| fs::read_to_string(zone.path().join("temp")).ok()?.trim().parse().ok());
        let pages = vmstat.lines().find_map(|line| line.strip_prefix("pswpout ")?.trim().parse::<u64>().ok());
        Self {
            clock_mhz: clocks.reduce(f64::max),
            temperature_c: millidegrees.map(|millidegrees: f64| millidegrees / 1e3).reduce(f64::max),
            swapped_bytes: pages.map(|pages| pages.saturating_mul(Memory::detect().page_bytes)),
        }
    }

    /// The same, but of swap only what was written since `earlier`.
    pub(crate) fn since(self, earlier: &Self) -> Self {
        let swapped = earlier.swapped_bytes.zip(self.swapped_bytes);
        Self { swapped_bytes: swapped.and_then(|(before, now)| now.checked_sub(before)), ..self }
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
        let swap = Swap::parse("SwapCached: 1 kB\nSwapTotal: 100 kB\nSwapFree: 40 kB\n");
        assert_eq!(swap, Some(Swap { total_bytes: 102_400, used_bytes: 61_440 }));
        assert_eq!(Swap::parse("SwapTotal: 0 kB\nSwapFree: 0 kB\n"), None);
    }

    #[test]
    fn field_report_56_swap_is_counted_for_a_run() {
        let at =
            |clock_mhz, swapped_bytes| Conditions { clock_mhz: Some(clock_mhz), temperature_c: None, swapped_bytes };
        assert_eq!(at(2.0, Some(900)).since(&at(1.0, Some(400))), at(2.0, Some(500)));
        assert_eq!(at(2.0, Some(900)).since(&at(1.0, None)), at(2.0, None));
        assert_eq!(at(2.0, Some(3)).since(&at(1.0, Some(4))), at(2.0, None), "the machine slept, or counts anew");
    }
}
