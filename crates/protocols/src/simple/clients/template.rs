//! Text templates: `«name»` is replaced by a value; the lines between `«if name»` and `«end»`, with an
//! optional `«else»`, are included if the condition is true. Conditions are on lines of their own and
//! can be nested.
//!
//! Templates are ASCII except for these marks, and values are ASCII, so a mark that remains is detected.

/// Values and conditions, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct TemplateValues {
    values: Vec<(&'static str, String)>,
    conditions: Vec<(&'static str, bool)>,
}

impl TemplateValues {
    /// Adds a value.
    pub(super) fn value(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.values.push((name, value.into()));
        self
    }

    /// Adds a condition.
    pub(super) fn condition(mut self, name: &'static str, holds: bool) -> Self {
        self.conditions.push((name, holds));
        self
    }

    fn find(&self, name: &str) -> Result<&str, String> {
        let found = self.values.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.as_str()).ok_or_else(|| format!("there is no value {name:?}"))
    }

    fn holds(&self, name: &str) -> Result<bool, String> {
        let found = self.conditions.iter().find(|(known, _)| *known == name);
        found.map(|(_, holds)| *holds).ok_or_else(|| format!("there is no condition {name:?}"))
    }

    /// Fills `template`.
    ///
    /// # Errors
    /// The mistake in the template, with its line number.
    pub(super) fn fill(&self, template: &str) -> Result<String, String> {
        let mut out = String::with_capacity(template.len());
        // The values of the enclosing conditions.
        let mut open: Vec<bool> = Vec::new();
        for (index, line) in template.lines().enumerate() {
            let at = |why: String| format!("line {}: {why}", index + 1);
            match command(line) {
                Some("end") => {
                    open.pop().ok_or_else(|| at("«end» without «if»".to_owned()))?;
                }
                Some("else") => {
                    let last =
                        open.last_mut().ok_or_else(|| at("«else» without «if»".to_owned()))?;
                    *last = !*last;
                }
                Some(command) if command.starts_with("if ") => {
                    let name = command.trim_start_matches("if ");
                    open.push(self.holds(name).map_err(at)?);
                }
                _ => {
                    // Also filled if it is left out, so that every mistake is found.
                    let filled = self.fill_line(line).map_err(at)?;
                    if open.iter().all(|holds| *holds) {
                        out.push_str(&filled);
                        out.push('\n');
                    }
                }
            }
        }
        if open.is_empty() { Ok(out) } else { Err("«if» without «end»".to_owned()) }
    }

    fn fill_line(&self, line: &str) -> Result<String, String> {
        let mut parts = line.split('«');
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (name, rest) = part.split_once('»').ok_or("« without »")?;
            out.push_str(self.find(name)?);
            out.push_str(rest);
        }
        if out.is_ascii() { Ok(out) } else { Err(format!("not ASCII: {out}")) }
    }
}

/// The command on this line, if it has nothing else.
fn command(line: &str) -> Option<&str> {
    let inner = line.trim().strip_prefix('«')?.strip_suffix('»')?;
    let is_command = inner == "end" || inner == "else" || inner.starts_with("if ");
    is_command.then_some(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blanks() -> TemplateValues {
        TemplateValues::default()
            .value("a", "1")
            .value("b", "2")
            .condition("yes", true)
            .condition("no", false)
    }

    #[test]
    fn values_and_conditions() {
        let template = "x «a»«b» y\n«if yes»\nin\n  «if no»\nout\n  «else»\n«b»\n  «end»\n«end»\nz";
        assert_eq!(blanks().fill(template).as_deref(), Ok("x 12 y\nin\n2\nz\n"));
    }

    #[test]
    fn every_mistake_is_an_error() {
        for (template, why) in [
            ("«c»", "line 1: there is no value \"c\""),
            ("a\n«if maybe»\n«end»", "line 2: there is no condition \"maybe\""),
            ("«if no»\n«c»\n«end»", "line 2: there is no value \"c\""),
            ("«a", "line 1: « without »"),
            ("a»", "line 1: not ASCII: a»"),
            ("«end»", "line 1: «end» without «if»"),
            ("«else»", "line 1: «else» without «if»"),
            ("«if yes»", "«if» without «end»"),
            ("é", "line 1: not ASCII: é"),
        ] {
            assert_eq!(blanks().fill(template), Err(why.to_owned()), "{template}");
        }
    }
}
