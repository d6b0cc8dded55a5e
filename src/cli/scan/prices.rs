//! The cost of models' responses: as recorded, by a file of the user, or by list price.

use std::{collections::HashMap, fs, path::Path, sync::Arc, time::SystemTime};

use genai_prices::{Calculator, PriceRequest, Usage, UsageKey};
use parking_lot::Mutex;
use serde::Deserialize;

use crate::{
    cli::{CliError, trace::read_error},
    ingest::transcripts::ModelUsage,
};

/// The user's prices, then the list prices.
pub(super) struct PriceList {
    own: HashMap<String, OwnPrice>,
    /// The name under which a model is in the list, with its provider; `None`: it is not.
    known: Mutex<HashMap<Arc<str>, Option<ListedModel>>>,
}

#[derive(Clone)]
struct ListedModel {
    provider: Arc<str>,
    name: Arc<str>,
}

/// A model in the JSON of LiteLLM.
#[derive(Deserialize)]
struct OwnPrice {
    input_cost_per_token: Option<f64>,
    output_cost_per_token: Option<f64>,
    cache_read_input_token_cost: Option<f64>,
    cache_creation_input_token_cost: Option<f64>,
    cache_creation_input_token_cost_above_1hr: Option<f64>,
}

/// The source of the list prices, with its version in `Cargo.lock`.
const LIST: &str = "genai-prices 0.2.1";

impl PriceList {
    pub fn load(file: Option<&Path>) -> Result<Self, CliError> {
        let own = match file {
            None => HashMap::new(),
            Some(file) => {
                let text = fs::read(file).map_err(|error| read_error(file, &error))?;
                serde_json::from_slice(&text).map_err(|error| {
                    let why = format!("{}: not prices of models: {error}", file.display());
                    CliError::usage(why)
                })?
            }
        };
        Ok(Self {
            own,
            known: Mutex::default(),
        })
    }

    pub fn description(&self) -> &'static str {
        LIST
    }

    /// The cost of a response; `None`: the price of the model is not known.
    pub fn cost_usd(&self, usage: &ModelUsage, time: Option<SystemTime>) -> Option<f64> {
        usage
            .cost_usd
            .or_else(|| self.own_cost(usage))
            .or_else(|| self.list_cost(usage, time))
            .filter(|usd| usd.is_finite() && *usd >= 0.0)
    }

    fn own_cost(&self, usage: &ModelUsage) -> Option<f64> {
        let price = self
            .own
            .get(&*usage.model)
            .or_else(|| self.own.get(bare_name(&usage.model)))?;
        let input = price.input_cost_per_token?;
        let plain = usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens;
        let cached = price.cache_read_input_token_cost.unwrap_or(input);
        let written = price.cache_creation_input_token_cost.unwrap_or(input);
        let kept_longer = price.cache_creation_input_token_cost_above_1hr;
        let kept_longer = kept_longer.unwrap_or(written);
        let written_shortly = usage.cache_write_tokens - usage.cache_write_1h_tokens;
        Some(
            plain as f64 * input
                + usage.cached_input_tokens as f64 * cached
                + written_shortly as f64 * written
                + usage.cache_write_1h_tokens as f64 * kept_longer
                + usage.output_tokens as f64 * price.output_cost_per_token?,
        )
    }

    fn list_cost(&self, usage: &ModelUsage, time: Option<SystemTime>) -> Option<f64> {
        if usage.model.is_empty() {
            return None;
        }
        let tokens = Usage::from([
            (UsageKey::INPUT_TOKENS, usage.input_tokens as f64),
            (
                UsageKey::CACHE_READ_TOKENS,
                usage.cached_input_tokens as f64,
            ),
            (
                UsageKey::CACHE_WRITE_TOKENS,
                usage.cache_write_tokens as f64,
            ),
            (
                UsageKey::CACHE_WRITE_1H_TOKENS,
                usage.cache_write_1h_tokens as f64,
            ),
            (UsageKey::OUTPUT_TOKENS, usage.output_tokens as f64),
        ]);
        let listed = self.find(&usage.model, &tokens)?;
        let request = PriceRequest::new(&listed.name, &tokens).with_provider_id(&listed.provider);
        let request = match time {
            Some(time) => request.with_timestamp(time),
            None => request,
        };
        let price = Calculator::bundled().calculate(&request).ok()?;
        Some(price.total_price)
    }

    /// The search compares a name with every model, so its result is kept.
    fn find(&self, model: &Arc<str>, tokens: &Usage) -> Option<ListedModel> {
        if let Some(found) = self.known.lock().get(model) {
            return found.clone();
        }
        let names = [&**model, bare_name(model)].into_iter();
        let found = names
            .filter_map(|name| {
                let request = PriceRequest::new(name, tokens);
                let price = Calculator::bundled().calculate(&request).ok()?;
                Some(ListedModel {
                    provider: price.provider_id.as_str().into(),
                    name: name.into(),
                })
            })
            .next();
        self.known.lock().insert(model.clone(), found.clone());
        found
    }
}

/// The name without its provider: `anthropic/claude-…`.
fn bare_name(model: &str) -> &str {
    model.rsplit('/').next().unwrap_or(model)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn usage(model: &str) -> ModelUsage {
        ModelUsage {
            model: model.into(),
            input_tokens: 1_000_000,
            cached_input_tokens: 900_000,
            output_tokens: 10_000,
            ..ModelUsage::default()
        }
    }

    #[track_caller]
    fn check(prices: &PriceList, usage: &ModelUsage, expected: Option<f64>) {
        let cost = prices.cost_usd(usage, Some(SystemTime::UNIX_EPOCH));
        let rounded = |usd: f64| (usd * 1e6).round();
        assert_eq!(cost.map(rounded), expected.map(rounded));
    }

    #[test]
    fn the_recorded_cost_comes_before_the_list_and_unknown_models_have_none() {
        let prices = PriceList::load(None).unwrap();
        // 100,000 tokens at $3 a million, 900,000 cached at $0.30, 10,000 written at $15.
        check(&prices, &usage("claude-3-5-sonnet"), Some(0.72));
        check(&prices, &usage("anthropic/claude-3-5-sonnet"), Some(0.72));
        check(&prices, &usage("no-such-model"), None);
        check(&prices, &usage(""), None);
        let recorded = ModelUsage {
            cost_usd: Some(0.5),
            ..usage("claude-3-5-sonnet")
        };
        check(&prices, &recorded, Some(0.5));
    }

    #[test]
    fn a_response_has_the_price_of_its_day_and_of_its_length() {
        let prices = PriceList::load(None).unwrap();
        let on = |day: u64| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(day * 86_400));
        let cost = |usage: &ModelUsage, day| prices.cost_usd(usage, on(day)).unwrap();
        let plain = |model: &str, input_tokens| ModelUsage {
            model: model.into(),
            input_tokens,
            ..ModelUsage::default()
        };
        // o3 became cheaper on 10 June 2025, which is day 20,249.
        let o3 = plain("o3", 100_000);
        assert_eq!((cost(&o3, 20_248), cost(&o3, 20_249)), (1.0, 0.2));
        // Two responses of 150,000 tokens cost less than one of 300,000.
        let (short, long) = (
            plain("gemini-2.5-pro", 150_000),
            plain("gemini-2.5-pro", 300_000),
        );
        assert!(2.0 * cost(&short, 20_500) < cost(&long, 20_500));
        // What is kept for an hour costs twice the input, otherwise 1.25 times.
        let written = |cache_write_1h_tokens| ModelUsage {
            cache_write_tokens: 100_000,
            cache_write_1h_tokens,
            ..plain("claude-sonnet-4-5", 100_000)
        };
        let dollars = [0, 100_000].map(|kept| (cost(&written(kept), 20_500) * 1e6).round());
        assert_eq!(dollars, [375_000.0, 600_000.0]);
    }

    #[test]
    fn prices_of_the_user_come_before_the_list() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let own = r#"{"no-such-model": {"input_cost_per_token": 1e-6, "output_cost_per_token": 1e-5,
            "cache_read_input_token_cost": 1e-7, "mode": "chat"}, "sample_spec": {}}"#;
        fs::write(file.path(), own).unwrap();
        let prices = PriceList::load(Some(file.path())).unwrap();
        check(&prices, &usage("no-such-model"), Some(0.29));
        fs::write(file.path(), "[]").unwrap();
        assert!(PriceList::load(Some(file.path())).is_err());
    }

    #[test]
    fn the_list_has_the_version_of_the_crate() {
        let lock = include_str!("../../../Cargo.lock");
        let (name, version) = LIST.split_once(' ').unwrap();
        let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
        assert!(lock.contains(&entry), "{LIST}");
    }
}
