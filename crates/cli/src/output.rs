//! Answers on stdout: tables for people, JSON for programs.

use std::fmt::Display;
use std::io::{self, Write};

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde::Serialize;

use crate::exit::Failure;

/// Prints a line. It is out when this returns.
pub(crate) fn line(what: impl Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{what}")?;
    Ok(out.flush()?)
}

/// Prints one JSON document, spread over lines.
pub(crate) fn document(what: &impl Serialize) -> Result<(), Failure> {
    line(serde_json::to_string_pretty(what).map_err(io::Error::from)?)
}

/// Prints one JSON object on one line.
pub(crate) fn object(what: &impl Serialize) -> Result<(), Failure> {
    line(serde_json::to_string(what).map_err(io::Error::from)?)
}

/// Rows without a frame, under their headings if they have some. Columns of figures (marked by a
/// leading `>` in their heading) are aligned to the right.
pub(crate) struct Rows {
    table: Table,
    is_right: Vec<bool>,
}

impl Rows {
    pub(crate) fn new(headings: &[&str]) -> Self {
        let mut table = Table::new();
        table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        if !headings.is_empty() {
            table.set_header(headings.iter().map(|heading| heading.trim_start_matches('>')));
        }
        let is_right = headings.iter().map(|heading| heading.starts_with('>')).collect();
        Self { table, is_right }
    }

    pub(crate) fn add(&mut self, cells: Vec<String>) {
        self.table.add_row(cells);
    }

    /// Prints the rows, each behind `indent`.
    pub(crate) fn print(mut self, indent: &str) -> Result<(), Failure> {
        for (index, column) in self.table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if self.is_right.get(index).is_some_and(|is_right| *is_right) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for row in self.table.lines() {
            line(format!("{indent}{}", row.trim_end()))?;
        }
        Ok(())
    }
}
