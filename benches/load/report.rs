//! Prints the table.

use std::{fmt::Write, fs, process::Command};

use super::{
    load_generator::mix::Kind,
    measure::{Plan, Row},
    scenario::{Bar, P99_BAR, Scenario},
};

pub fn table(rows: &[Row], scenarios: &[Scenario]) -> String {
    let mut table = String::from(
        "| load | mix | bare server, events/s | Unstuck, events/s | ratio | bare server, µs of a core an event | Unstuck | ratio | \
         bare server, p99 µs | Unstuck | ratio | p99 of the whole run, ratio | bar |\n\
         | --- | --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --- |\n",
    );
    for row in rows {
        let scenario = &scenarios[row.scenario];
        let kind = match scenario.kind {
            Kind::Healthy => "healthy",
            Kind::Looping => "looping",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            table,
            "| {} | {kind} | {:.0} | {:.0} | {:.2} | {:.2} | {:.2} | {:.2} | {:.0} | {:.0} | {:.2} | {:.2} | {} |",
            row.name,
            row.bare.events_per_sec,
            row.unstuck.events_per_sec,
            row.throughput,
            row.bare.cpu_micros,
            row.unstuck.cpu_micros,
            row.core,
            row.bare.p99_micros,
            row.unstuck.p99_micros,
            row.p99,
            row.whole_p99,
            bar(row, scenario.bar),
        );
    }
    table
}

fn bar(row: &Row, bar: Option<Bar>) -> String {
    let (wanted, is_reached) = match bar {
        None => return "none".to_owned(),
        Some(Bar::Calls(least)) => (
            format!("calls {least}, p99 {P99_BAR}"),
            row.throughput >= least && row.p99 <= P99_BAR,
        ),
        Some(Bar::Core(least)) => (format!("core {least}"), row.core >= least),
    };
    let word = if is_reached { "reached" } else { "not reached" };
    format!("{wanted}: {word}")
}

/// The machine, and its other load.
pub fn machine(plan: &Plan, ready: &str) -> String {
    let file = |path| fs::read_to_string(path).unwrap_or_default();
    let line = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key));
        let value = line.and_then(|line| line.split_once(':'));
        value
            .map_or("unknown", |(_, value)| value.trim())
            .to_owned()
    };
    let busy = file("/proc/loadavg");
    let busy = busy.split_whitespace().nth(1).unwrap_or("unknown");
    let pinned = match plan.core {
        Some(_) => "the server on one core, the generator on the others",
        None => "server and generator on all cores",
    };
    format!(
        "{}, {} cores; memory {}; Linux {}; {}. Load average of the last 5 minutes \
         {busy}. {} rounds of {} s, {pinned}. Start to ready: {ready}.\n",
        line(&file("/proc/cpuinfo"), "model name"),
        plan.cores,
        line(&file("/proc/meminfo"), "MemTotal"),
        file("/proc/sys/kernel/osrelease").trim(),
        version_of("rustc", "--version"),
        plan.rounds,
        plan.time.as_secs_f64(),
    )
}

fn version_of(program: &str, arg: &str) -> String {
    let output = Command::new(program).arg(arg).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.unwrap_or_else(|_| format!("{program} unknown"))
}
