//! The console: the dashboard's page.

pub mod assets;
