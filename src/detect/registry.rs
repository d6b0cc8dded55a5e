//! The macro that turns the list of detectors into code.

/// Declares the detectors' modules. In the given order, it generates `NAMES`, the
/// struct `Settings` with one section per detector, and the struct `Detectors`
/// with one field per detector. Fields instead of boxed trait objects mean that a
/// session needs no allocation and no virtual call per detector.
macro_rules! registry {
    ($($name:ident: $detector:ident $(in $wrapper:ident)?,)+) => {
        $(pub mod $name;)+

        /// The detectors' names, by rank: config sections and metric labels.
        pub const NAMES: &[&str] = &[$(stringify!($name)),+];

        /// `[detect]`: a section for each detector.
        #[derive(Clone, Debug, serde::Deserialize)]
        pub struct Settings {
            $(pub $name: Section<<$name::$detector as Detector>::Settings>,)+
        }

        /// `[detect.<name>]`: whether the detector is enabled, and its own keys.
        #[derive(Clone, Debug, serde::Deserialize)]
        pub struct Section<S> {
            pub enabled: bool,
            #[serde(flatten)]
            pub own: S,
        }

        impl Settings {
            /// Rejects settings that can never fire. The error's first part is the
            /// name of the section.
            pub fn check(&self) -> Result<(), (&'static str, NeverFires)> {
                $(<$name::$detector as Detector>::check(&self.$name.own)
                    .map_err(|error| (stringify!($name), error))?;)+
                self.check_excluded_kinds()
            }

            /// The phrases that any detector searches for in turns.
            pub fn phrases(&self) -> impl Iterator<Item = &crate::domain::Phrase> {
                std::iter::empty()
                    $(.chain(<$name::$detector as Detector>::phrases(&self.$name.own)))+
            }

            /// Explains the detector of this name, in verdicts with this evidence;
            /// `None` if there is no such detector.
            pub fn explain(
                &self,
                detector: &str,
                evidence: &[&crate::domain::Evidence],
            ) -> Option<crate::domain::DetectorExplanation> {
                $(if detector == stringify!($name) {
                    let settings = &self.$name.own;
                    return Some(<$name::$detector as Detector>::explain_matches(settings, evidence));
                })+
                None
            }
        }

        /// The state of every detector, for one agent of one session.
        #[derive(Default, serde::Serialize, serde::Deserialize)]
        pub struct Detectors {
            $($name: state_type!($name::$detector $(, $wrapper)?),)+
        }

        impl Detectors {
            /// Runs every enabled detector on the observation, in the order of
            /// rank. `report` receives matches and missing fields. Returns the
            /// detectors that found nothing, as bits by rank.
            pub fn observe(
                &mut self,
                now: &crate::domain::Observation,
                past: &History,
                settings: &Settings,
                mut report: impl FnMut(crate::domain::DetectorId, crate::domain::DetectorOutcome),
            ) -> u64 {
                use crate::domain::DetectorOutcome;

                let mut rank = 0u8;
                let mut without_match = 0;
                $(
                    if settings.$name.enabled {
                        match self.$name.observe(now, past, &settings.$name.own) {
                            DetectorOutcome::NotApplicable | DetectorOutcome::Unchanged => {}
                            DetectorOutcome::NoMatch => without_match |= 1 << rank,
                            outcome => report(crate::domain::DetectorId(rank), outcome),
                        }
                    }
                    rank += 1;
                )+
                debug_assert_eq!(usize::from(rank), NAMES.len());
                without_match
            }

            /// Drops the events of a reported loop that has ended.
            pub fn consume(&mut self, cited: &[i32]) {
                $(self.$name.consume(cited);)+
            }

            pub fn reset(&mut self) {
                $(self.$name.reset();)+
            }

            pub fn reset_for_user(&mut self) {
                $(self.$name.reset_for_user();)+
            }

            pub fn heap_bytes(&self) -> usize {
                0 $(+ self.$name.heap_bytes())+
            }
        }
    };
}

/// The type of a detector's field: the detector itself, or its wrapper.
macro_rules! state_type {
    ($detector:ty) => { $detector };
    ($detector:ty, $wrapper:ident) => { $wrapper<$detector> };
}

pub(super) use {registry, state_type};
