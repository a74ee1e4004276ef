//! Fenced blocks of a Markdown page.
//!
//! Words after the language say more: `file=NAME` is a file that the page's commands use, `needs=WHAT` names what a machine
//! must have for the commands to run, `on=NAME` and `stays=yes` are of pages with several machines ([`super::machines`]).

/// A fenced block.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block<'a> {
    /// Line number of its first line of content, counted from 0.
    pub(super) first: usize,
    pub(super) lines: Vec<&'a str>,
    words: Vec<&'a str>,
}

impl<'a> Block<'a> {
    pub(super) fn language(&self) -> &'a str {
        self.words.first().copied().unwrap_or_default()
    }

    /// The value of `name=value` after the language.
    pub(super) fn attribute(&self, name: &str) -> Option<&'a str> {
        let mut pairs = self.words.iter().filter_map(|word| word.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
    }
}

/// All blocks of a page, in order.
pub(super) fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut found = Vec::new();
    let mut open: Option<Block<'_>> = None;
    for (number, line) in page.lines().enumerate() {
        open = match (open, line.strip_prefix("```")) {
            (None, None) => None,
            (None, Some(words)) => Some(Block {
                first: number + 1,
                lines: Vec::new(),
                words: words.split_whitespace().collect(),
            }),
            (Some(block), Some(_)) => {
                found.push(block);
                None
            }
            (Some(mut block), None) => {
                block.lines.push(line);
                Some(block)
            }
        };
    }
    found
}

/// A command of a `console` block and what it should print.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) command: String,
    /// Line number of the first expected line, counted from 0.
    pub(super) first: usize,
    pub(super) expected: Vec<String>,
}

/// The commands of a `console` block: `$ ` begins one, a backslash at the end of a line continues it.
pub(super) fn steps(block: &Block<'_>) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut continues = false;
    for (number, line) in (block.first..).zip(&block.lines) {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (None, Some(step)) if continues => {
                step.command.push('\n');
                step.command.push_str(line);
                step.first = number + 1;
                continues = line.ends_with('\\');
            }
            (Some(command), _) => {
                continues = command.ends_with('\\');
                steps.push(Step {
                    command: command.to_owned(),
                    first: number + 1,
                    expected: Vec::new(),
                });
            }
            (None, Some(step)) => step.expected.push((*line).to_owned()),
            (None, None) => {}
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_a_language_and_attributes() {
        let page = "text\n```console needs=gpu\n$ a\nb\n```\n\n```cpp file=x.cu\nint main\n```\n";
        let found = blocks(page);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].language(), "console");
        assert_eq!(found[0].attribute("needs"), Some("gpu"));
        assert_eq!((found[0].first, found[0].lines.len()), (2, 2));
        assert_eq!(found[1].attribute("file"), Some("x.cu"));
        assert_eq!(found[1].attribute("needs"), None);
    }

    #[test]
    fn a_step_has_its_command_with_continuations_and_the_lines_below_it() {
        let page = "```console\n$ a \\\n    b\nout\n\nmore\n$ c\n```\n";
        let found = steps(&blocks(page)[0]);
        assert_eq!(found[0].command, "a \\\n    b");
        assert_eq!(found[0].expected, ["out", "", "more"]);
        assert_eq!(found[0].first, 3);
        assert_eq!(found[1].command, "c");
        assert!(found[1].expected.is_empty());
    }
}
