//! `OneVsRestModel`: a classifier of two classes for each class.

use super::super::damaged;
use super::super::folder::StageFolder;
use super::super::table::VectorRow;
use super::super::{MAX_CLASSES, unsupported};
use super::predict::{ClassDecision, ClassModel, SparkClassifier};
use tensorserve_tensor::error::Result;

struct OneVsRest(Vec<ClassModel>);

impl SparkClassifier for OneVsRest {
    fn raw(&self, row: VectorRow<'_>, raw: &mut [f64]) {
        for (raw, model) in raw.iter_mut().zip(&self.0) {
            let mut both = [0.0; 2];
            model.classifier.raw(row, &mut both);
            *raw = both[1];
        }
    }

    fn probabilities(&self, _: &mut [f64]) {}

    fn refusal(&self, row: VectorRow<'_>) -> Option<String> {
        self.0.iter().find_map(|model| model.classifier.refusal(row))
    }
}

/// Reads the classifiers in the folders `model_0`, `model_1`, … with `read`.
pub(in super::super) fn one_vs_rest(
    folder: &StageFolder,
    read: impl Fn(&StageFolder) -> Result<Option<ClassModel>>,
) -> Result<ClassModel> {
    let classes = folder.size_field("numClasses").filter(|classes| *classes > 0);
    let classes = classes.ok_or_else(|| damaged("its metadata has no numClasses"))?;
    if classes > MAX_CLASSES {
        return Err(unsupported(format!("a model of {classes} classes")));
    }
    let mut models = Vec::new();
    for class in 0..classes {
        let name = format!("model_{class}");
        let inner = StageFolder::open(&folder.path.join(&name))?;
        let model = read(&inner).map_err(|error| error.context(&name))?;
        let model = model.filter(|model| model.classes == 2).ok_or_else(|| {
            unsupported(format!("a OneVsRestModel of {}", inner.class().unwrap_or("nothing")))
        })?;
        models.push(model);
    }
    let features = models.first().and_then(|model| model.features);
    if models.iter().any(|model| model.features != features) {
        return Err(damaged("its models differ in their numbers of features"));
    }
    let decision = ClassDecision::Largest;
    let classifier = Box::new(OneVsRest(models));
    Ok(ClassModel { classifier, classes, decision, features, has_probabilities: false })
}
