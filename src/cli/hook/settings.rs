//! The keys of `[hooks]` that the command needs, and the address of the service. Only one file
//! is read, and only this section of it: loading the whole configuration would take longer
//! than the call.

use std::{env, fs, io, net::IpAddr, path::Path, time::Duration};

use reqwest::Url;
use serde::Deserialize;

use super::{BUDGET, transport::HookFailure};
use crate::cli::local_service::LocalDirs;

/// The address of a team's service.
const URL_VARIABLE: &str = "UNSTUCK_HOOKS_URL";
/// The token for it. The other commands use the same variable.
const TOKEN_VARIABLE: &str = "UNSTUCK_TOKEN";

/// The defaults are those of default.toml.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(in crate::cli) struct HookSettings {
    pub enabled: bool,
    pub url: String,
    pub token_env: String,
    pub autostart: bool,
    pub kill: bool,
    pub shadow: bool,
    pub budget_millis: u64,
}

impl Default for HookSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            url: String::new(),
            token_env: String::new(),
            autostart: true,
            kill: false,
            shadow: false,
            budget_millis: u64::try_from(BUDGET.as_millis()).unwrap_or_default(),
        }
    }
}

#[derive(Deserialize)]
struct UserFile {
    #[serde(default)]
    hooks: HookSettings,
}

impl HookSettings {
    /// The time until the agent continues without a reply.
    pub fn budget(&self) -> Duration {
        Duration::from_millis(self.budget_millis)
    }

    pub fn load(file: Option<&Path>) -> Result<Self, HookFailure> {
        let Some(file) = file else {
            return Ok(Self::default());
        };
        let unusable = |why: &str| HookFailure::Config(format!("{}: {why}", file.display()));
        // A pipe would be waited for.
        if fs::metadata(file).is_ok_and(|found| !found.is_file()) {
            return Err(unusable("it is not a regular file"));
        }
        match fs::read_to_string(file) {
            Ok(text) => {
                let parsed: Result<UserFile, _> = toml::from_str(&text);
                Ok(parsed.map_err(|error| unusable(error.message()))?.hooks)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(unusable(&error.to_string())),
        }
    }
}

/// The service that gets the payload.
#[derive(Clone, Debug)]
pub(in crate::cli) enum HookTarget {
    Local(LocalDirs),
    Team {
        url: Url,
        /// The token, which is sent to this address only.
        token: Option<String>,
    },
}

/// The service by the command line.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::cli) struct NamedTarget<'a> {
    pub url: Option<&'a str>,
    /// The variable that has the token for it.
    pub token_env: Option<&'a str>,
    /// The command line also names the configuration, so variables do not count: agents load
    /// variables from files of a repository, which must not decide where payloads are sent.
    pub is_pinned: bool,
}

impl HookTarget {
    /// Chooses the service. A token is used only for the address that it was named with.
    pub fn choose(
        named: NamedTarget,
        settings: &HookSettings,
        dirs: Option<&LocalDirs>,
    ) -> Result<Self, HookFailure> {
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let from_environment = || {
            let url = variable(URL_VARIABLE).filter(|_| !named.is_pinned);
            Some((url?, TOKEN_VARIABLE))
        };
        let configured = || {
            let url = &settings.url;
            (!url.is_empty()).then(|| (url.clone(), &*settings.token_env))
        };
        let chosen = named
            .url
            .map(|url| (url.to_owned(), named.token_env.unwrap_or_default()))
            .or_else(from_environment)
            .or_else(configured);
        match chosen {
            Some((url, token_variable)) => Ok(Self::Team {
                url: check_url(&url).map_err(HookFailure::Config)?,
                token: variable(token_variable).map(|token| token.trim().to_owned()),
            }),
            None => {
                let dirs = dirs.ok_or(HookFailure::NoHome)?;
                Ok(Self::Local(dirs.clone().of_running_service()))
            }
        }
    }
}

/// The address of a service that may be sent what agents say: by https, or on this machine.
pub(in crate::cli) fn check_url(text: &str) -> Result<Url, String> {
    let invalid = |why: &str| format!("{text:?}: {why}");
    let url = Url::parse(text).map_err(|error| invalid(&error.to_string()))?;
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = host.eq_ignore_ascii_case("localhost")
        || address
            .parse()
            .is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback());
    match url.scheme() {
        "https" => {}
        "http" if is_loopback => {}
        "http" => return Err(invalid("http is for this machine only: use https")),
        _ => return Err(invalid("an address begins with https://")),
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("a token is given by the name of its variable"));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_https_leaves_the_machine() {
        for url in [
            "https://unstuck.example.com",
            "https://unstuck.example.com:8443/base/",
            "http://127.0.0.1:50552",
            "http://[::1]:50552",
            "http://localhost:50552",
        ] {
            assert!(check_url(url).is_ok(), "{url}");
        }
        for url in [
            "http://unstuck.example.com",
            "http://127.0.0.1.evil.example",
            "http://localhost.evil.example",
            "https://kim:secret@unstuck.example.com",
            "ftp://unstuck.example.com",
            "unix:/tmp/x",
            "unstuck.example.com",
            "",
        ] {
            assert!(check_url(url).is_err(), "{url}");
        }
    }
}
