//! Which settings are better than the default ones, by few and noisy trials.
//!
//! Successive halving (Jamieson and Talwalkar 2016, "Non-stochastic Best Arm Identification and Hyperparameter
//! Optimization", AISTATS): all candidates get a trial, the better half two more each, and so on, so that every round
//! takes about as long as the first, and most trials go to the settings between which it is hard to decide.
//!
//! Machines become slower and faster while the search runs. The default settings therefore run between the candidates,
//! and only ratios count: of a score to those of the default runs just before and after it. The default runs also show
//! the noise. A candidate must be ahead by more than noise explains.

use super::candidates::TrialSettings;
use tensorserve_tensor::error::Error;

/// Candidates between two runs of the default settings.
const BETWEEN: usize = 2;

/// A smaller gain is not worth a setting.
const LEAST_GAIN: f64 = 0.03;

/// The 99.5 % quantile of Student's t, by degrees of freedom from 1 on: of several candidates, the luckiest is looked at.
const STUDENT: [f64; 12] = [63.7, 9.92, 5.84, 4.6, 4.03, 3.71, 3.5, 3.36, 3.25, 3.17, 3.11, 3.05];

/// The same for many degrees.
const NORMAL: f64 = 2.8;

/// Why there is no score.
#[derive(Debug)]
pub(super) enum TrialEnd {
    /// The settings do not work, or the server did not survive them.
    Out(String),
    /// The user has stopped the command.
    Interrupted,
    /// Nothing can be measured at all.
    Fatal(Error),
}

impl From<Error> for TrialEnd {
    fn from(error: Error) -> Self {
        TrialEnd::Fatal(error)
    }
}

/// One trial.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TrialRecord {
    pub(super) round: usize,
    pub(super) settings: TrialSettings,
    /// The higher the better.
    pub(super) score: Option<f64>,
    /// Why there is none.
    pub(super) out: Option<String>,
}

/// What is known about a candidate.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CandidateStanding {
    pub(super) settings: TrialSettings,
    /// Logarithms of the ratios to the default runs around.
    ratios: Vec<f64>,
    /// Why it is out, if it is.
    pub(super) out: Option<String>,
}

impl CandidateStanding {
    fn new(settings: &TrialSettings) -> Self {
        CandidateStanding { settings: settings.clone(), ratios: Vec::new(), out: None }
    }

    /// How many times as good as the default settings, by the geometric mean.
    pub(super) fn ratio(&self) -> Option<f64> {
        (!self.ratios.is_empty()).then(|| mean(&self.ratios).exp())
    }

    pub(super) fn trials(&self) -> usize {
        self.ratios.len()
    }
}

/// The search, which keeps what it has found when it ends early.
#[derive(Clone, Debug, Default)]
pub(super) struct SettingsSearch {
    pub(super) standings: Vec<CandidateStanding>,
    pub(super) records: Vec<TrialRecord>,
    /// Scores of the default runs.
    defaults: Vec<f64>,
    round: usize,
}

/// A trial of settings: their score, of which a higher one is better.
pub(super) type SettingsTrial<'t> = dyn FnMut(&TrialSettings) -> Result<f64, TrialEnd> + 't;

/// The number of trials of a search.
pub(super) fn trials_of(candidates: usize, repeats: usize) -> usize {
    let (mut alive, mut sum) = (candidates, 1);
    while alive > 0 {
        let of_round = (candidates * repeats).div_ceil(alive) * alive;
        sum += of_round + of_round.div_ceil(BETWEEN);
        alive = if alive == 1 || alive == 2 { 0 } else { alive.div_ceil(2) };
    }
    sum
}

impl SettingsSearch {
    /// Tries all candidates, the first round `repeats` times, for as long as there is time.
    ///
    /// # Errors
    /// If the default settings do not work, or the command was stopped.
    pub(super) fn run(
        &mut self,
        candidates: &[TrialSettings],
        repeats: usize,
        has_time: &dyn Fn() -> bool,
        trial: &mut SettingsTrial<'_>,
    ) -> Result<(), TrialEnd> {
        self.standings = candidates.iter().map(CandidateStanding::new).collect();
        let mut alive: Vec<usize> = (0..candidates.len()).collect();
        while !alive.is_empty() && has_time() {
            self.round += 1;
            let repeats = (candidates.len() * repeats).div_ceil(alive.len());
            self.try_each(&alive, repeats, has_time, trial)?;
            let is_last = alive.len() <= 2;
            alive = if is_last { Vec::new() } else { self.survivors(&alive) };
        }
        Ok(())
    }

    /// A round.
    fn try_each(
        &mut self,
        alive: &[usize],
        repeats: usize,
        has_time: &dyn Fn() -> bool,
        trial: &mut SettingsTrial<'_>,
    ) -> Result<(), TrialEnd> {
        // To and fro, so that a drift of the machine hits all alike.
        let turns = (0..repeats).flat_map(|turn| {
            let there = alive.iter().copied();
            if turn % 2 == 0 { there.collect() } else { there.rev().collect::<Vec<_>>() }
        });
        let turns: Vec<usize> = turns.collect();
        let mut before = match self.defaults.last() {
            Some(last) => *last,
            None => self.default_run(trial)?,
        };
        for turn in turns.chunks(BETWEEN) {
            if !has_time() {
                return Ok(());
            }
            let mut scores = Vec::new();
            for number in turn {
                scores.push((*number, self.candidate_run(*number, trial)?));
            }
            let after = self.default_run(trial)?;
            for (number, score) in scores {
                if let (Some(score), Some(standing)) = (score, self.standings.get_mut(number)) {
                    standing.ratios.push(score.ln() - f64::midpoint(before.ln(), after.ln()));
                }
            }
            before = after;
        }
        Ok(())
    }

    fn default_run(&mut self, trial: &mut SettingsTrial<'_>) -> Result<f64, TrialEnd> {
        let settings = TrialSettings::default();
        let score = trial(&settings).map_err(|end| match end {
            TrialEnd::Out(why) => {
                TrialEnd::Fatal(Error::precondition(format!("with the default settings: {why}")))
            }
            TrialEnd::Interrupted | TrialEnd::Fatal(_) => end,
        })?;
        let score = score.max(f64::MIN_POSITIVE);
        self.records.push(TrialRecord {
            round: self.round,
            settings,
            score: Some(score),
            out: None,
        });
        self.defaults.push(score);
        Ok(score)
    }

    /// The score of a candidate that is not out.
    fn candidate_run(
        &mut self,
        number: usize,
        trial: &mut SettingsTrial<'_>,
    ) -> Result<Option<f64>, TrialEnd> {
        let Some(standing) = self.standings.get_mut(number).filter(|one| one.out.is_none()) else {
            return Ok(None);
        };
        let settings = standing.settings.clone();
        let (score, out) = match trial(&settings) {
            Ok(score) => (Some(score.max(f64::MIN_POSITIVE)), None),
            Err(TrialEnd::Out(why)) => (None, Some(why)),
            Err(end) => return Err(end),
        };
        standing.out.clone_from(&out);
        self.records.push(TrialRecord { round: self.round, settings, score, out });
        Ok(score)
    }

    /// The better half, without those that are clearly not better than the default settings. After the first round, the
    /// two best are also tried together.
    fn survivors(&mut self, alive: &[usize]) -> Vec<usize> {
        let mean_of = |number: usize| {
            let standing = self.standings.get(number).filter(|one| one.out.is_none())?;
            (!standing.ratios.is_empty()).then(|| mean(&standing.ratios))
        };
        let mut ranked: Vec<(usize, f64)> =
            alive.iter().filter_map(|number| Some((*number, mean_of(*number)?))).collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        ranked.truncate(alive.len().div_ceil(2));
        ranked.retain(|(number, mean)| {
            let trials = self.standings.get(*number).map_or(0, CandidateStanding::trials);
            mean + self.uncertainty(trials) > 0.0
        });
        let both = match ranked.as_slice() {
            [(first, a), (second, b), ..] if self.round == 1 && a.min(*b) > 0.0 => {
                self.together(*first, *second)
            }
            _ => None,
        };
        let mut left: Vec<usize> = ranked.into_iter().map(|(number, _)| number).collect();
        if let Some(both) = both {
            self.standings.push(CandidateStanding::new(&both));
            // In place of the last one, so that the round is not longer.
            left.pop();
            left.push(self.standings.len() - 1);
        }
        left
    }

    fn together(&self, first: usize, second: usize) -> Option<TrialSettings> {
        let (first, second) = (self.standings.get(first)?, self.standings.get(second)?);
        first.settings.and(&second.settings)
    }

    /// How far apart two runs of the same settings are: the standard deviation of the logarithm of a score. It comes from
    /// successive differences (von Neumann 1941), which a slow drift does not enlarge.
    // Trials are few.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn noise(&self) -> Option<f64> {
        let logs: Vec<f64> = self.defaults.iter().map(|score| score.ln()).collect();
        let pairs = logs.iter().zip(logs.iter().skip(1));
        let squares: Vec<f64> = pairs.map(|(a, b)| (b - a).powi(2)).collect();
        (!squares.is_empty()).then(|| (mean(&squares) / 2.0).sqrt())
    }

    /// By how much the mean of so many ratios must differ from none, as a logarithm, to be no chance.
    // Trials are few.
    #[allow(clippy::cast_precision_loss)]
    fn uncertainty(&self, trials: usize) -> f64 {
        let Some(noise) = self.noise() else { return f64::INFINITY };
        let degrees = self.defaults.len().saturating_sub(1);
        let student = STUDENT.get(degrees.saturating_sub(1)).copied().unwrap_or(NORMAL);
        // A ratio has the noise of a run and of the mean of two.
        student * noise * (1.5 / trials.max(1) as f64).sqrt()
    }

    /// The best candidate, if it is ahead of the default settings by more than noise explains.
    pub(super) fn best(&self) -> Option<&CandidateStanding> {
        let is_ahead = |standing: &&CandidateStanding| {
            let lead = mean(&standing.ratios);
            standing.out.is_none()
                && lead > self.uncertainty(standing.trials()).max(LEAST_GAIN.ln_1p())
        };
        let ahead = self.standings.iter().filter(|one| one.trials() > 0).filter(is_ahead);
        // By what is certain of the lead: few trials may be lucky.
        let certain = |one: &CandidateStanding| mean(&one.ratios) - self.uncertainty(one.trials());
        ahead.max_by(|a, b| certain(a).total_cmp(&certain(b)))
    }
}

// Trials are few.
#[allow(clippy::cast_precision_loss)]
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::super::chance::Chance;
    use super::*;

    fn named(names: &[&'static str]) -> Vec<TrialSettings> {
        let one = |name: &&'static str| TrialSettings([(*name, "1".to_owned())].into());
        names.iter().map(one).collect()
    }

    /// A search on a server whose scores have this noise, and which becomes a third faster meanwhile.
    fn found(goodness: &[(&'static str, f64)], noise: f64, seed: u64) -> SettingsSearch {
        let names: Vec<&'static str> = goodness.iter().map(|(name, _)| *name).collect();
        let (mut chance, mut count) = (Chance(seed), 0.0);
        let mut search = SettingsSearch::default();
        let mut trial = |settings: &TrialSettings| {
            count += 1.0;
            let factors = goodness.iter().filter(|(name, _)| settings.0.contains_key(name));
            let factor: f64 = factors.map(|(_, factor)| factor).product();
            if factor == 0.0 {
                return Err(TrialEnd::Out("the server ended".to_owned()));
            }
            Ok(1000.0 * (1.0 + count / 120.0) * factor * (noise * chance.normal()).exp())
        };
        search.run(&named(&names), 1, &|| true, &mut trial).expect("default settings work");
        search
    }

    #[test]
    fn the_best_of_known_candidates_is_found() {
        let goodness = [
            ("a", 0.9),
            ("b", 1.0),
            ("c", 1.3),
            ("d", 1.05),
            ("e", 0.7),
            ("f", 1.0),
            ("g", 0.0),
            ("h", 0.98),
        ];
        let is_found = |seed: &u64| {
            let search = found(&goodness, 0.05, *seed);
            search.best().is_some_and(|best| best.settings.0.contains_key("c"))
        };
        let count = (0..200).filter(is_found).count();
        assert!(count >= 190, "{count} of 200");
        let search = found(&goodness, 0.05, 1);
        let dead = search.standings.iter().find(|one| one.settings.0.contains_key("g"));
        assert_eq!(dead.and_then(|dead| dead.out.as_deref()), Some("the server ended"));
    }

    #[test]
    fn equal_candidates_leave_the_default_settings() {
        let goodness = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|name| (name, 1.0));
        let wrong = (0..400).filter(|seed| found(&goodness, 0.05, *seed).best().is_some()).count();
        assert!(wrong <= 20, "{wrong} of 400");
        // A noisier machine needs a larger lead, but makes no more mistakes.
        let wrong = (0..400).filter(|seed| found(&goodness, 0.3, *seed).best().is_some()).count();
        assert!(wrong <= 20, "{wrong} of 400");
    }

    #[test]
    fn two_that_help_are_tried_together() {
        let goodness = [("a", 1.3), ("b", 1.25), ("c", 1.0), ("d", 0.9)];
        let search = found(&goodness, 0.02, 3);
        assert_eq!(search.best().expect("both").settings.words(), "a=1 b=1");
    }

    #[test]
    fn trials_go_to_the_better_half_and_end_with_the_time() {
        let goodness = ["a", "b", "c", "d"].map(|name| (name, 1.0));
        let search = found(&goodness, 0.0, 1);
        assert!(search.records.len() <= trials_of(4, 1), "{}", search.records.len());
        assert_eq!(trials_of(8, 1), 1 + 12 + 12 + 12);
        let mut none = SettingsSearch::default();
        none.run(&named(&["a"]), 1, &|| false, &mut |_| Ok(1.0)).expect("nothing is tried");
        assert!(none.records.is_empty() && none.best().is_none());
    }

    #[test]
    fn default_settings_that_fail_are_an_error() {
        let mut search = SettingsSearch::default();
        let mut trial = |_: &TrialSettings| Err(TrialEnd::Out("it is gone".to_owned()));
        let end = search.run(&named(&["a"]), 1, &|| true, &mut trial).expect_err("an error");
        assert!(matches!(&end, TrialEnd::Fatal(error) if error.to_string().contains("it is gone")));
        // An interruption keeps what was found.
        let mut left = 4;
        let mut trial = |_: &TrialSettings| {
            left -= 1;
            if left > 0 { Ok(1.0) } else { Err(TrialEnd::Interrupted) }
        };
        let mut search = SettingsSearch::default();
        let end = search.run(&named(&["a", "b", "c"]), 1, &|| true, &mut trial);
        assert!(matches!(end, Err(TrialEnd::Interrupted)));
        assert_eq!(search.records.len(), 3);
    }
}
