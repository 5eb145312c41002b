//! Text in columns.

use std::borrow::Cow;

use super::printable::on_one_line;

/// The rows as lines with aligned columns, two spaces apart. The first row is the header.
/// A cell stays on its line, whatever it holds.
pub(super) fn columns(rows: &[Vec<String>]) -> String {
    let safe = rows.iter().map(|row| row.iter().map(|cell| on_one_line(cell)).collect());
    let rows: Vec<Vec<Cow<'_, str>>> = safe.collect();
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, &width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_line_up() {
        let rows = [vec!["A".into(), "B".into()], vec!["long".into(), "é".into()]];
        assert_eq!(columns(&rows), "A     B\nlong  é\n");
        let rows = [vec!["a\r\u{1b}[31m".into(), "b\nready".into()]];
        assert_eq!(columns(&rows), "a\\r\\u{1b}[31m  b\\nready\n");
    }
}
