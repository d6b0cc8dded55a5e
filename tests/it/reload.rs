//! Reloading the configuration while the service runs.

use std::{fs, path::Path};

use tempfile::TempDir;
use unstuck::pb::Action;

use crate::{
    harness::*,
    lifecycle::{Running, directory, unstuck},
};

/// A service and its configuration.
pub struct Service {
    here: TempDir,
    running: Running,
    pub server: Server,
    reloads: [f64; 2],
}

const RESULTS: [&str; 2] = ["applied", "refused"];

impl Service {
    pub async fn start(toml: &str) -> Self {
        let here = directory(&[("unstuck.toml", toml)]);
        let mut command = unstuck(here.path(), &["serve"], &[]);
        if toml.contains("[server]") {
            // A variable would override the file.
            command.env_remove("UNSTUCK__SERVER__HTTP");
        }
        let running = Running::start(command);
        let server = running.server().await;
        Self {
            here,
            running,
            server,
            reloads: [0.0; 2],
        }
    }

    /// Changes the configuration and waits until it was applied or refused.
    pub async fn reload(&mut self, toml: &str, result: &str) {
        fs::write(self.file(), toml).unwrap();
        let which = RESULTS.iter().position(|known| *known == result).unwrap();
        self.reloads[which] += 1.0;
        self.running.child.signal("HUP");
        let series = format!("unstuck_config_reloads_total{{result=\"{result}\"}}");
        self.server
            .wait_for_metric(&series, self.reloads[which])
            .await;
    }

    fn file(&self) -> std::path::PathBuf {
        Path::new(self.here.path()).join("unstuck.toml")
    }
}

fn exact_repeat(count: u32) -> String {
    format!("[detect.exact_repeat]\ncount = {count}\n")
}

#[tokio::test]
async fn a_session_continues_with_the_new_settings_and_its_counts() {
    let mut service = Service::start(&exact_repeat(6)).await;
    let first = service.server.play("s", ask("colour").times(2)).await;
    assert_eq!(first[1].action(), Action::Unspecified);
    service.reload(&exact_repeat(3), "applied").await;
    let third = service.server.record(ask("colour").of("s")).await;
    assert_eq!((third.event_index, third.action()), (2, Action::Warn));
    // A stream that stayed open uses them too.
    let mut stream = service.server.events().await;
    stream
        .ask(batch(1, [ask("size").of("t"), ask("size").of("t")]))
        .await;
    service.reload(&exact_repeat(5), "applied").await;
    let answer = stream.ask(batch(2, [ask("size").of("t")])).await;
    assert_eq!(answer.results[0].action(), Action::Unspecified);
}

#[tokio::test]
async fn a_streamed_text_continues_when_the_phrases_change() {
    let mut service = Service::start("").await;
    let mut deltas = service.server.deltas().await;
    deltas.send(pieces([piece("s", "1", "How can I he")])).await;
    service
        .reload("[detect.greeting]\nmarkers = ['lp you']\n", "applied")
        .await;
    let answer = deltas
        .ask(pieces([last_delta("s", "1", "lp you today?")]))
        .await;
    assert_eq!(answer.error, None);
}

#[tokio::test]
async fn an_invalid_configuration_changes_nothing() {
    let mut service = Service::start(&exact_repeat(3)).await;
    service.server.play("s", ask("colour").times(2)).await;
    for bad in [
        "[detect.exact_repeat]\ncuont = 9",
        "[detect.exact_repeat]\ncount = 9\nwindow = 2",
        "[detect.exact_repeat]\ncount = 9\n[limits]\nsessions_max = 0",
        "nonsense",
    ] {
        service.reload(bad, "refused").await;
    }
    fs::remove_file(service.file()).unwrap();
    let third = service.server.record(ask("colour").of("s")).await;
    assert_eq!(third.action(), Action::Warn);
    let (_, log) = service.running.stop().await;
    assert_eq!(log.matches("the old one stays in force").count(), 4);
    assert!(
        log.contains("unstuck.toml:2; did you mean `count`?"),
        "{log}"
    );
}

#[tokio::test]
async fn a_configuration_that_could_not_start_is_refused_even_if_it_needs_a_restart() {
    let here = "[server]\nhttp = '127.0.0.1:0'\n";
    let mut service = Service::start(&(here.to_owned() + &exact_repeat(3))).await;
    service.server.play("s", ask("colour").times(2)).await;
    let bad = [
        "[[notify]]\nname = 'a'\nurl = 'ftp://example.com'",
        "[[notify]]\nname = 'no name'\nurl = 'https://example.com'",
        "[[notify]]\nname = 'a'\nurl = 'https://example.com'\nbody = '{{'",
        "[tls]\ncert = 'nowhere.pem'\nkey = 'nowhere.key'",
        "[auth]\ntokens = 'nowhere.toml'",
    ];
    for bad in bad {
        let toml = format!("{here}{}{bad}", exact_repeat(9));
        service.reload(&toml, "refused").await;
    }
    let exposed = format!("[server]\nhttp = '0.0.0.0:0'\n{}", exact_repeat(9));
    service.reload(&exposed, "refused").await;
    let third = service.server.record(ask("colour").of("s")).await;
    assert_eq!(third.action(), Action::Warn);
    let (_, log) = service.running.stop().await;
    for why in [
        "invalid `notify`[0].url",
        "invalid `notify`[0].name",
        "invalid `notify`[0].body",
        "nowhere.key",
        "nowhere.toml",
        "server.http is not a loopback address",
    ] {
        assert!(log.contains(why), "{why}: {log}");
    }
}

#[tokio::test]
async fn a_change_that_is_taken_back_needs_no_restart() {
    let mut service = Service::start(&exact_repeat(3)).await;
    let changed = exact_repeat(9) + "[limits]\nbatch_max = 7\n";
    service.reload(&changed, "applied").await;
    service.reload("nonsense", "refused").await;
    service.reload(&changed, "applied").await;
    service.reload(&changed, "applied").await;
    service.reload(&exact_repeat(3), "applied").await;
    let results = service.server.play("s", ask("colour").times(3)).await;
    assert_eq!(results[2].action(), Action::Warn);
    let (_, log) = service.running.stop().await;
    // On each reload while it was changed, not when it was taken back.
    let waiting = "keys=[\"limits.batch_max\"]";
    assert_eq!(log.matches(waiting).count(), 3, "{log}");
}

#[tokio::test]
async fn limits_tools_rules_and_profiles_are_reloaded_and_keys_that_need_a_restart_are_named() {
    let rule = |count: u32| {
        format!("[[rules]]\nname = 'looks'\nwhen = 'tool == \"lookup_setting\"'\ncount = {count}\n")
    };
    let mut service = Service::start(&rule(9)).await;
    assert_eq!(
        service.server.record(ask("a").of("s")).await.action(),
        Action::Unspecified
    );
    let changed = rule(2)
        + "[limits]\nsessions_max = 1\nbatch_max = 7\n[store]\nqueue_max = 9\n[profiles.calm]\nmode = 'shadow'\n";
    service.reload(&changed, "applied").await;
    assert_eq!(service.server.metric("unstuck_sessions_max").await, 1.0);
    let second = service.server.record(ask("b").of("s")).await;
    assert_eq!(second.verdict.unwrap().detector, "rule:looks");
    assert!(service.server.try_record(ask("a").of("t")).await.is_err());
    assert!(service.server.open("s", "calm", &[]).await.is_ok());
    // A changed list of rules needs a restart.
    let more = changed.clone() + "[[rules]]\nname = 'more'\nwhen = 'true'\n";
    service.reload(&more, "refused").await;
    // Sessions of a removed profile get the default.
    service.reload(&rule(2), "applied").await;
    service.server.record(ask("c").of("s")).await;
    assert_eq!(service.server.get("s").await.unwrap().profile, "default");
    let (_, log) = service.running.stop().await;
    let waiting = "keys=[\"limits.batch_max\", \"store.queue_max\"]";
    assert!(log.contains(waiting), "{log}");
    assert!(log.contains("[[rules]] needs a restart"), "{log}");
}
