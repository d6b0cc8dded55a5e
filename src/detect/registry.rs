/// Declares the detectors' modules and makes of them, in the order given: their
/// names, their settings (a section each) and their state (a field each, so
/// that a session needs no box and no virtual call a detector).
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

        /// `[detect.<name>]`: whether it looks at all, and its own keys.
        #[derive(Clone, Debug, serde::Deserialize)]
        pub struct Section<S> {
            pub enabled: bool,
            #[serde(flatten)]
            pub own: S,
        }

        impl Settings {
            /// Refuses settings that can never fire; the first name is the section.
            pub fn check(&self) -> Result<(), (&'static str, NeverFires)> {
                $(<$name::$detector as Detector>::check(&self.$name.own)
                    .map_err(|error| (stringify!($name), error))?;)+
                self.check_excluded_kinds()
            }

            /// The phrases that any detector listens for in turns.
            pub fn phrases(&self) -> impl Iterator<Item = &crate::domain::Phrase> {
                std::iter::empty()
                    $(.chain(<$name::$detector as Detector>::phrases(&self.$name.own)))+
            }

            /// Why the detector of this name fires; `None`: there is none.
            pub fn explain(&self, detector: &str) -> Option<crate::domain::DetectorExplanation> {
                $(if detector == stringify!($name) {
                    return Some(<$name::$detector as Detector>::explain(&self.$name.own));
                })+
                None
            }
        }

        /// The state of every detector, for one agent of one session.
        #[derive(Default)]
        pub struct Detectors {
            $($name: state_type!($name::$detector $(, $wrapper)?),)+
        }

        impl Detectors {
            /// Shows the observation to each detector that is switched on, in
            /// the order of rank. `report` gets what is found and who abstained;
            /// returned are those that looked and found nothing, as bits.
            pub fn observe(
                &mut self,
                now: &crate::domain::Observation,
                past: &History,
                settings: &Settings,
                mut report: impl FnMut(crate::domain::DetectorId, crate::domain::DetectorOutcome),
            ) -> u64 {
                use crate::domain::DetectorOutcome;

                let mut rank = 0u8;
                let mut clear = 0;
                $(
                    if settings.$name.enabled {
                        match self.$name.observe(now, past, &settings.$name.own) {
                            DetectorOutcome::NotApplicable | DetectorOutcome::Unchanged => {}
                            DetectorOutcome::NoMatch => clear |= 1 << rank,
                            outcome => report(crate::domain::DetectorId(rank), outcome),
                        }
                    }
                    rank += 1;
                )+
                debug_assert_eq!(usize::from(rank), NAMES.len());
                clear
            }

            /// A reported loop with these events has ended.
            pub fn consume(&mut self, cited: &[i32]) {
                $(self.$name.consume(cited);)+
            }

            pub fn reset(&mut self) {
                $(self.$name.reset();)+
            }

            pub fn heap_bytes(&self) -> usize {
                0 $(+ self.$name.heap_bytes())+
            }
        }
    };
}

/// The type in which a detector's state is held: itself, or something about it.
macro_rules! state_type {
    ($detector:ty) => { $detector };
    ($detector:ty, $wrapper:ident) => { $wrapper<$detector> };
}

pub(super) use {registry, state_type};
