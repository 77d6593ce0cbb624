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

/// Rows under their headings, without a frame. Columns of figures (marked by a leading `>` in
/// their heading) are aligned to the right.
pub(crate) struct Rows {
    table: Table,
}

impl Rows {
    pub(crate) fn new(headings: &[&str]) -> Self {
        let mut table = Table::new();
        table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(headings.iter().map(|heading| heading.trim_start_matches('>')));
        for (index, heading) in headings.iter().enumerate() {
            if let Some(column) = table.column_mut(index) {
                let right = if index + 1 == headings.len() { 0 } else { 2 };
                column.set_padding((0, right));
                if heading.starts_with('>') {
                    column.set_cell_alignment(CellAlignment::Right);
                }
            }
        }
        Self { table }
    }

    pub(crate) fn add(&mut self, cells: Vec<String>) {
        self.table.add_row(cells);
    }

    /// Prints the rows, each behind `indent`.
    pub(crate) fn print(&self, indent: &str) -> Result<(), Failure> {
        for row in self.table.lines() {
            line(format!("{indent}{}", row.trim_end()))?;
        }
        Ok(())
    }
}
