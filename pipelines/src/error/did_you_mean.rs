//! The word that a user may have meant: a similar one, or the word of DGL or PyG for it.

/// Words of DGL, PyG and their examples in lower case, and those of gnnflow.
const OTHER_WORDS: &[(&str, &str)] = &[
    ("alpha", "teleport"),
    ("appnpconv", "appnp"),
    ("attn_drop", "attention_dropout"),
    ("batch_size", "batch"),
    ("cuda", "device"),
    ("fan_out", "fanouts"),
    ("feat_drop", "input_dropout"),
    ("gatconv", "gat"),
    ("gatv2conv", "gatv2"),
    ("gcnconv", "gcn"),
    ("gineconv", "gine"),
    ("ginconv", "gin"),
    ("gpu", "device"),
    ("graphconv", "gcn"),
    ("graphsage", "sage"),
    ("hidden_channels", "hidden"),
    ("hidden_dim", "hidden"),
    ("hidden_size", "hidden"),
    ("learning_rate", "lr"),
    ("num_epochs", "epochs"),
    ("num_heads", "heads"),
    ("num_hidden", "hidden"),
    ("num_layers", "layers"),
    ("num_neighbors", "fanouts"),
    ("num_parts", "parts"),
    ("relgraphconv", "rgcn"),
    ("rgcnconv", "rgcn"),
    ("sageconv", "sage"),
    ("sgconv", "sgc"),
    ("wd", "weight_decay"),
];

/// Returns gnnflow's word for a word of DGL or PyG.
pub(crate) fn own_word(word: &str) -> Option<&'static str> {
    let word = word.to_lowercase().replace('-', "_");
    OTHER_WORDS.iter().find(|(other, _)| *other == word).map(|(_, own)| *own)
}

/// Returns the candidate that `word` means in DGL or PyG, or else the most similar one, if one is similar enough.
pub(crate) fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let candidates: Vec<&str> = candidates.into_iter().collect();
    let own = own_word(word).and_then(|own| candidates.iter().copied().find(|candidate| *candidate == own));
    let similarity = |candidate: &str| strsim::jaro_winkler(&word.to_lowercase(), &candidate.to_lowercase());
    let scored = candidates.into_iter().map(|candidate| (similarity(candidate), candidate));
    let similar = scored.filter(|(score, _)| *score > 0.75).max_by(|a, b| a.0.total_cmp(&b.0));
    own.or_else(|| similar.map(|(_, candidate)| candidate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_other_systems_lead_to_ours_if_they_are_candidates() {
        assert_eq!(did_you_mean("GraphSAGE", ["gcn", "sage"]), Some("sage"));
        assert_eq!(did_you_mean("batch_size", ["epochs", "batch", "fanouts"]), Some("batch"));
        assert_eq!(did_you_mean("epoch", ["epochs", "batch"]), Some("epochs"));
        assert_eq!(did_you_mean("graphsage", ["mlp"]), None);
    }
}
