//! The status of a run on the whole terminal, refreshed every second.

use std::path::Path;
use std::time::{Duration, Instant};

use gnnflow_pipelines::Error as PipelineError;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line as TextLine;
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table};

use super::view::{COLUMNS, View};
use crate::error::Error;
use crate::status::RunStatus;

/// Time between two reads of the status.
const REFRESH: Duration = Duration::from_secs(1);
/// The widths of columns; the state has what is left.
const WIDTHS: [Constraint; COLUMNS.len()] = [
    Constraint::Length(4),
    Constraint::Max(16),
    Constraint::Fill(1),
    Constraint::Length(10),
    Constraint::Length(10),
    Constraint::Length(7),
    Constraint::Length(12),
    Constraint::Length(12),
    Constraint::Length(10),
    Constraint::Length(10),
    Constraint::Length(12),
];

/// Shows the run in `run_dir`, whose first status is `status`, until the user presses `q`, Escape or Ctrl-C.
///
/// # Errors
/// If the terminal cannot be used.
pub(crate) fn show(run_dir: &Path, status: RunStatus) -> Result<(), Error> {
    let failed = |error| PipelineError::io("use", "the terminal")(error);
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let shown = refresh(&mut terminal, run_dir, status).map_err(failed);
    let restored = ratatui::try_restore().map_err(failed);
    Ok(shown.and(restored)?)
}

fn refresh(
    terminal: &mut ratatui::DefaultTerminal,
    run_dir: &Path,
    mut status: RunStatus,
) -> Result<(), std::io::Error> {
    let mut problem = None;
    loop {
        terminal.draw(|frame| draw(frame, &status, problem.as_deref()))?;
        let until = Instant::now() + REFRESH;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            if event::poll(left)? {
                match event::read()? {
                    Event::Key(key) if is_end(key.code, key.modifiers) => return Ok(()),
                    Event::Resize(..) => break,
                    _ => {}
                }
            }
        }
        // The last status remains on the screen if there is no new one.
        match RunStatus::read(run_dir) {
            Ok(new) => (status, problem) = (new, None),
            Err(error) => problem = Some(error.to_string()),
        }
    }
}

fn is_end(key: KeyCode, modifiers: KeyModifiers) -> bool {
    let control_c = key == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL);
    matches!(key, KeyCode::Char('q') | KeyCode::Esc) || control_c
}

fn draw(frame: &mut Frame<'_>, status: &RunStatus, problem: Option<&str>) {
    let View { lines, rows } = View::of(status, status.age());
    let alarm = Style::new().fg(Color::Red);
    let mut texts: Vec<TextLine<'_>> = lines
        .into_iter()
        .map(|line| TextLine::styled(line.text, if line.is_alarm { alarm } else { Style::new() }))
        .collect();
    texts.extend(problem.map(|problem| TextLine::styled(problem.to_owned(), alarm)));
    let height = texts.len() as u16 + 1;
    let [above, below, last] =
        Layout::vertical([Constraint::Length(height), Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
    frame.render_widget(Paragraph::new(texts), above);
    let cell = |(index, text): (usize, String)| match index {
        0..3 => Cell::from(text),
        _ => Cell::from(TextLine::from(text).right_aligned()),
    };
    let header = COLUMNS.iter().map(|name| (*name).to_owned()).enumerate().map(cell);
    let header = TableRow::new(header).style(Style::new().add_modifier(Modifier::BOLD));
    let rows = rows.into_iter().map(|row| {
        let style = if row.is_stale { alarm } else { Style::new() };
        TableRow::new(row.cells.into_iter().enumerate().map(cell)).style(style)
    });
    frame.render_widget(Table::new(rows, WIDTHS).header(header).column_spacing(2), below);
    frame.render_widget(Paragraph::new("q ends"), last);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{ProcessStatus, ReceivedStatus};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    #[test]
    fn screen_has_the_run_and_a_row_for_each_process() {
        let of = |rank| ProcessStatus { rank, host: format!("host-{rank}"), ..ProcessStatus::default() };
        let statuses = [0, 1].map(|rank| ReceivedStatus { age_seconds: 0.0, status: of(rank) });
        let status = RunStatus { name: "friends".into(), statuses: statuses.into(), ..RunStatus::default() };
        let mut terminal = Terminal::new(TestBackend::new(150, 12)).unwrap();
        terminal.draw(|frame| draw(frame, &status, Some("cannot read"))).unwrap();
        let screen = terminal.backend().to_string();
        for text in ["friends: preparing", "no news for", "cannot read", "host-0", "host-1", "cache hits", "q ends"] {
            assert!(screen.contains(text), "{text}: {screen}");
        }
        assert!(is_end(KeyCode::Char('q'), KeyModifiers::NONE) && is_end(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!is_end(KeyCode::Char('c'), KeyModifiers::NONE));
    }
}
